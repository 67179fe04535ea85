"""The battery against each back end, as root and as another user, and against no jail at all."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.programs.run import Limits, Outcome, Result, Run
from services.verifier.jail import select
from services.verifier.jail.battery import battery, exhaust
from services.verifier.jail.battery.traps import Traps
from services.verifier.jail.select import BACKENDS, choose
from tests.verifier import jail_process

pytestmark = pytest.mark.slow  # many processes

ROOT = os.geteuid() == 0


class NoJail:
    """A plain child process: everything is open."""

    version = "none"

    async def run(self, run: Run) -> Result:
        """Run a program as it is, in a folder that all runs share."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", run.program),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate(run.stdin)
        outcome = Outcome.EXITED if process.returncode else Outcome.DONE
        return Result(outcome, process.returncode or 0, stdout, stderr)

    async def close(self) -> None:
        """Do nothing."""


# Others would change files, processes or the limits of this machine.
SHOWN = ("reads", "network", "environment", "kernel", "memory", "disk", "files", "finds", "daemon")


@pytest.mark.parametrize("attempt", SHOWN)
async def test_each_attempt_sees_an_open_door(
    attempt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BANYAN_SECRET_OF_A_TEST", "1")
    monkeypatch.setattr(battery, "_ATTEMPTS", ("leaves", attempt, "memory"))
    found = await battery.holes(NoJail())
    seen = "rows.jsonl was changed" if attempt == "daemon" else f"{attempt}: "
    assert any(seen in hole for hole in found), found


@pytest.mark.parametrize(
    ("forks", "room", "watched", "seen"),
    [
        (20, 0, False, []),
        (21, 0, True, ["21 processes"]),
        (21, 1, True, []),  # the watch ends them
        (21, 1, False, ["21 processes for seconds"]),
        (22, 1, True, ["22 processes"]),
    ],
)
def test_more_processes_than_are_allowed_are_a_hole(
    forks: int, room: int, watched: bool, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = iter(range(1, forks + 1))

    def fork() -> int:
        try:
            return next(forked)
        except StopIteration:
            raise BlockingIOError from None

    def start(_: threading.Thread) -> None:
        raise RuntimeError

    def sleep(seconds: float) -> None:
        assert seconds >= 5
        if watched:
            raise SystemExit

    monkeypatch.setattr(exhaust.os, "fork", fork)
    monkeypatch.setattr(exhaust.threading.Thread, "start", start)
    monkeypatch.setattr(exhaust.time, "sleep", sleep)
    told = battery._TOLD["most_processes"]
    said = []
    with contextlib.suppress(SystemExit):
        for hole in exhaust.processes({"most_processes": told, "room": room}):
            said.append(hole)
    assert (told, said) == (20, seen)


async def test_the_traps_see_what_a_program_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(battery, "_ATTEMPTS", ("network",))
    monkeypatch.setattr(battery, "_silent", lambda _: [])
    monkeypatch.setattr(battery, "_JUDGES", {})
    found = await battery.holes(NoJail())
    assert {"tcp was reached", "udp was reached", "abstract was reached"} <= set(found)


@pytest.mark.parametrize("user", [False, True] if ROOT else [False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_back_end_has_a_hole(backend: str, user: bool) -> None:
    found = jail_process.holes({"backend": backend, "user": user})
    assert found["refused"] == "" and found["holes"] == []
    assert backend in found["version"]


def test_two_batteries_at_once_have_traps_of_their_own() -> None:
    """A verifier's first program and its first session may come together."""
    first, second = Traps({}), Traps({})
    assert first.sprung() == second.sprung() == []
    for traps in (first, second):
        traps.close()
        assert not traps.folder.exists()


PROCESS = """
import time
from services.verifier.jail.battery.traps import Traps
traps = Traps({})
print(traps.folder, traps.message["processes"][0], flush=True)
time.sleep(60)
"""


async def test_traps_of_a_process_that_was_killed_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    environment = {**os.environ, "TMPDIR": "/tmp"}
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        cwd=Path(__file__).parents[3],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder, victim = process.stdout.readline().split()
        process.kill()
    status = Path(f"/proc/{victim}/cmdline")  # empty of one that nobody has waited for
    await eventually(lambda: not status.exists() or not status.read_bytes(), 10.0, "its end")
    os.utime(folder, (0, 0))
    Traps({}).close()
    assert not Path(folder).exists()


async def test_a_proof_is_kept_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    async def count(_jail: object) -> list[str]:
        passes.append(1)
        return []

    monkeypatch.setattr(battery, "holes", count)
    for _ in range(2):
        await (await choose(tmp_path)).close()
    assert len(passes) == 1
    monkeypatch.setattr("services.verifier.jail.select.platform.uname", lambda: ("other kernel",))
    await (await choose(tmp_path)).close()
    assert len(passes) == 2
    (tmp_path / "jail_proofs.json").write_text("[broken")
    await (await choose(tmp_path)).close()
    assert len(passes) == 3
    status = tmp_path / "status"
    status.write_text(select._STATUS.read_text().replace("Uid:", "Uid:\t1"))
    monkeypatch.setattr(select, "_STATUS", status)
    await (await choose(tmp_path)).close()
    assert len(passes) == 4, "of another user it proves nothing"


async def test_a_back_end_with_a_hole_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one(_jail: object) -> list[str]:
        return ["reads: read /etc/passwd"]

    monkeypatch.setattr(battery, "holes", one)
    with pytest.raises(InvalidInput) as refused:
        await choose(tmp_path)
    for backend in BACKENDS:
        assert f"{backend}: the battery found 1 holes: reads: read /etc/passwd" in str(
            refused.value
        )
    assert not (tmp_path / "jail_proofs.json").exists()


def test_limits_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="memory_mb must be at least 0, got -1"):
        Limits(memory_mb=-1)
