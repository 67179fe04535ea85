"""The end of a process with all that it started, fork bombs and daemons included."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process.

    status: its wait status.
    count: processes that ended, itself included.
    clean: nothing is left.
    """

    status: int
    count: int
    clean: bool


def end(process: int, *, alone: bool, within_s: float) -> Ended:
    """Kill `process` and everything below this process, which adopts orphans.

    Repeat until nothing is left or the time is over. alone: this is the first process of a process
    namespace, so that one call kills all others.
    """
    status, count = 0, 0
    deadline = time.monotonic() + within_s
    while True:
        _kill(alone)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG if count else 0)) != (0, 0):
                count += 1
                if ended[0] == process:
                    status = ended[1]
        if not children():
            return Ended(status, count, clean=True)
        if time.monotonic() > deadline:
            return Ended(status, count, clean=False)
        time.sleep(0.001)


def children() -> bool:
    """Return True if this process has children."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill(alone: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if alone:
            os.kill(-1, signal.SIGKILL)
            return
    for process in below(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def below(process: int) -> list[int]:
    """Return all visible descendants of a process."""
    descendants: list[int] = []
    waiting = [process]
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    children_of_task = [int(child) for child in file.read().split()]
                waiting += children_of_task
                descendants += children_of_task
    return descendants
