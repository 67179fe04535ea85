"""Workers of monty: lost ones are replaced, none outlives its parent, and each is confined."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan.programs.run import Limits, Outcome
from services.verifier.jail.inside import language
from services.verifier.jail.monty import Sessions
from services.verifier.sandbox.confinement import landlock

REPOSITORY = Path(__file__).parents[3]
FOREVER = Limits(wall_s=60.0, cpu_s=60.0)
PARENT = """
import asyncio, sys
from services.verifier.jail.monty import Sessions
from banyan.programs.run import Limits

async def main():
    sessions = await Sessions.start(width=2)
    print(sessions._folder, flush=True)
    if sys.argv[1] == "stays":
        await sessions.run("while True: pass", limits=Limits(wall_s=600, cpu_s=600))
    await asyncio.gather(*(sessions.run("print(1)") for _ in range(20)))
    if sys.argv[1] == "closes":
        await sessions.close()

asyncio.run(main())
"""


def workers(parent: int | None = None) -> list[int]:
    """Return the workers below a process."""
    children = Path(f"/proc/{parent or os.getpid()}/task").glob("*/children")
    found = [int(child) for path in children for child in path.read_text().split()]
    return [one for one in found if b"monty\0subprocess" in read(one, "cmdline")]


def read(process: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""


def busy(parent: int | None = None) -> list[int]:
    """Return those workers that have computed for longer than one takes to start."""
    found = []
    for worker in workers(parent):
        try:
            if time.clock_gettime((~worker << 3) | 2) > 0.5:
                found.append(worker)
        except OSError:
            continue
    return found


@pytest_asyncio.fixture
async def sessions() -> AsyncIterator[Sessions]:
    """One worker."""
    sessions = await Sessions.start(width=1)
    yield sessions
    await sessions.close()


async def test_a_busy_machine_runs_services_before_programs(sessions: Sessions) -> None:
    assert {os.getpriority(os.PRIO_PROCESS, worker) for worker in workers()} == {
        min(os.nice(0) + 10, 19)
    }


async def test_a_worker_that_is_killed_while_idle_is_replaced(sessions: Sessions) -> None:
    state = (await sessions.run("x = 1")).state
    (worker,) = workers()
    os.kill(worker, signal.SIGKILL)
    assert (await sessions.run("print(x)", state)).stdout == b"1\n"
    assert worker not in workers()


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(signal.SIGKILL, Outcome.LOST), (signal.SIGABRT, Outcome.SIGNALLED)],
)
async def test_a_run_whose_worker_dies_twice(
    sessions: Sessions, eventually: Any, number: int, outcome: Outcome
) -> None:
    state = (await sessions.run("x = 1")).state
    running = asyncio.create_task(sessions.run("while True: pass", state, FOREVER))
    for _ in range(2):
        await eventually(busy, 10.0, "a worker that computes")
        for worker in busy():
            os.kill(worker, number)
        await eventually(lambda: not busy(), 10.0, "its end")
    result = await running
    assert (result.outcome, result.state) == (outcome, state)
    assert b"signal" in result.stderr
    assert (await sessions.run("print(x)", state)).stdout == b"1\n"


async def test_a_run_that_nobody_waits_for_is_ended(sessions: Sessions, eventually: Any) -> None:
    running = asyncio.create_task(sessions.run("while True: pass", limits=FOREVER))
    await eventually(busy, 10.0, "a worker that computes")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not busy(), 2.0, "its end")
    assert (await sessions.run("print(2)")).stdout == b"2\n"


async def test_a_worker_has_no_rights_and_no_environment(sessions: Sessions) -> None:
    (worker,) = workers()
    status = read(worker, "status").decode()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(facts["CapEff"], 16) == 0
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    assert read(worker, "environ") == b""


@pytest.mark.parametrize(
    ("binary", "arguments", "seen"),
    [
        ("/bin/cat", [__file__], "Permission denied"),
        ("/bin/ls", ["/"], "Permission denied"),
        ("/bin/cp", ["/dev/null", "/tmp/made"], "Permission denied"),
        ("/bin/sh", ["-c", "/bin/cat /dev/null"], "Permission denied"),
    ],
)
def test_what_a_worker_executes_is_confined(
    binary: str, arguments: list[str], seen: str, tmp_path: Path
) -> None:
    script = tmp_path / "worker"
    script.write_text(language.command(sys.executable, str(REPOSITORY), os.path.realpath(binary)))
    done = subprocess.run(["sh", script, *arguments], capture_output=True, text=True)
    assert done.returncode != 0 and seen in done.stderr, done


async def test_without_confinement_there_are_no_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    monkeypatch.setattr(language, "command", lambda *_: f"#!/bin/sh\n: > {broken}\nexit 1\n")
    with pytest.raises(OSError, match=r"no worker of monty starts: .*exit status: 1"):
        await Sessions.start()
    assert broken.exists()


def test_a_kernel_without_landlock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "reading", lambda *_: None)
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setattr(language.resource, "setrlimit", lambda *_: None)
    with pytest.raises(OSError, match="no Landlock"):
        language.confine(["/bin/true"])


def started(way: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, way],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_workers_end_with_a_parent_that_is_killed(eventually: Any, tmp_path: Path) -> None:
    parent = started("stays", tmp_path)
    assert parent.stdout is not None
    parent.stdout.readline()
    await eventually(lambda: busy(parent.pid), 10.0, "a worker that computes")
    processes = workers(parent.pid)
    parent.kill()
    parent.communicate()
    await eventually(lambda: not any(read(one, "cmdline") for one in processes), 2.0, "their end")


@pytest.mark.parametrize("way", ["closes", "leaves"])
def test_a_process_with_sessions_ends_well(way: str, tmp_path: Path) -> None:
    parent = started(way, tmp_path)
    folder = parent.communicate(timeout=20)[0].strip()
    assert parent.returncode == 0
    assert Path(folder).exists() == (way == "leaves")


async def test_the_folder_of_a_killed_process_goes_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: Sessions
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, new, foreign = (tmp_path / f"banyan-monty-{name}" for name in ("dead", "new", "link"))
    own = tmp_path / "banyan-monty-notes"  # of a user: nothing that we made
    for folder in (dead, own):
        folder.mkdir()
        (folder / "worker").write_text("")
    (dead / ".banyan").touch()
    foreign.symlink_to(REPOSITORY)
    living = await Sessions.start(width=1)
    long_ago = time.time() - 3600
    for folder in (str(dead), str(own), living._folder):
        os.utime(folder, (long_ago, long_ago))
    new.mkdir()
    other = await Sessions.start(width=1)
    assert not dead.exists() and (own / "worker").exists() and new.exists() and foreign.is_symlink()
    assert (await living.run("print(1)")).stdout == b"1\n" and Path(living._folder).exists()
    for one in (living, other):
        await one.close()
        assert not Path(one._folder).exists()


async def test_sessions_that_do_not_start_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(language, "command", lambda *_: "#!/nowhere\n")
    with pytest.raises(OSError, match="no worker of monty starts"):
        await Sessions.start()
    assert list(tmp_path.iterdir()) == []
