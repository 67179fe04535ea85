"""Ends all that a process started, bombs and daemons too."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended (a wait status), how many ended with it, and whether nothing is left."""

    status: int
    count: int
    clean: bool


def end(process: int, *, alone: bool, within_s: float) -> Ended:
    """Kill `process` and everything below this process, which adopts orphans, until nothing is left or the time is over.

    alone: this is the first process of a process namespace, so that all others are killed by one
    call.
    """
    status, count, deadline = 0, 0, time.monotonic() + within_s
    while True:
        _kill(alone)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG if count else 0)) != (0, 0):
                count += 1
                status = found[1] if found[0] == process else status
        if not children():
            return Ended(status, count, True)
        if time.monotonic() > deadline:
            return Ended(status, count, False)
        time.sleep(0.001)


def children() -> bool:
    """Whether this process has any."""
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
    """All descendants of a process, as far as they can be seen."""
    found, waiting = list[int](), [process]
    while waiting:
        above = waiting.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{above}/task"):
                with open(f"/proc/{above}/task/{task}/children") as file:
                    waiting += (new := [int(one) for one in file.read().split()])
                    found += new
    return found
