"""Real processes: the state folder's lock, and children that die, hang on, or lose their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from banyan.errors import InvalidInput, Refused
from banyan.runtime import ports
from services.supervisor.child import Child
from services.supervisor.state import PORTS, StateFolder
from tests.supervisor.supervised import DEAF, alive


def test_one_supervisor_at_a_time(tmp_path: Path) -> None:
    first, second = StateFolder.open(tmp_path / "s"), StateFolder.open(tmp_path / "s")
    first.lock()
    assert second.locked()
    with pytest.raises(Refused, match=f"in use by process {os.getpid()}"):
        second.lock()
    first.unlock()
    assert not second.locked()
    second.lock()
    second.unlock()


def test_a_folder_whose_name_is_no_utf_8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is written into files and messages, which must be UTF-8."""
    working = tmp_path / "caf\udce9"
    working.mkdir()
    monkeypatch.chdir(working)
    with pytest.raises(InvalidInput, match="its name is no UTF-8 text; name another with --state"):
        StateFolder.open(Path("s"))
    assert not list(working.iterdir())


def test_ports_are_kept_unless_somebody_took_them(tmp_path: Path) -> None:
    import socket

    folder = StateFolder.open(tmp_path / "s")
    folder.choose_ports()
    first = dict(folder.ports)
    second = StateFolder.open(tmp_path / "s")
    second.choose_ports()
    assert second.ports == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first["gateway"]))
        taken.listen()
        third = StateFolder.open(tmp_path / "s")
        third.choose_ports()
    assert third.ports["gateway"] != first["gateway"] and third.ports["nats"] == first["nats"]


def test_no_two_services_get_the_same_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_outgoing_ports", lambda: (20_012, 65_535))  # leaves twelve
    for number in range(20):
        folder = StateFolder.open(tmp_path / str(number))
        folder.choose_ports()
        assert len(set(folder.ports.values())) == len(folder.ports) == len(PORTS)


async def test_a_child_lives_in_a_session_of_its_own_and_is_stopped(tmp_path: Path) -> None:
    child = Child(
        "c", "c", [sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "log"
    )
    await child.start()
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    await child.stop(5.0)
    assert not alive(child.pid)


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, eventually) -> None:
    child = Child("c", "c", [sys.executable, "-c", DEAF], {}, tmp_path / "log")
    await child.start()
    await eventually(lambda: "deaf" in child.tail(), 10.0)
    await child.stop(0.2)
    assert child.process is not None and child.process.returncode == -signal.SIGKILL


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent = f"""
import asyncio, sys
from pathlib import Path
from services.supervisor.child import Child
async def main():
    command = [sys.executable, "-m", "services.chassis.lifeline", "sleep", "60"]
    child = Child("c", "c", command, {{}}, Path({str(tmp_path / "log")!r}))
    await child.start()
    print(child.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    deadline = time.monotonic() + 10
    command_line = Path(f"/proc/{pid}/cmdline")
    while "sleep" not in command_line.read_text().split("\0")[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("learner: rank 1 is lost: it was killed", ": rank 1 is lost: it was killed"),
        ("2026-11-23 12:00:00,000 learner INFO services.learner: step 3", ""),
        ("", ""),
    ],
)
async def test_a_child_that_says_why_it_ends_is_quoted(
    tmp_path: Path, line: str, words: str
) -> None:
    command = [sys.executable, "-c", f"print({line!r}); raise SystemExit(1)"]
    child = Child("learner-run", "learner", command, {}, tmp_path / "log")
    await child.start()
    assert await child.wait() == 1 and child.last_words() == words
