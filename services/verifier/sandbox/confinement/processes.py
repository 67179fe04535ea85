"""The end of a process with all that it started, fork bombs and daemons included."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process.

    status: its wait status.
    count: processes that ended, itself included.
    clean: nothing is left.
    cpu_s: processor time of all of them, and of those that they waited for.
    peak_mb: largest memory of itself, or of one that it waited for.
    """

    status: int
    count: int
    clean: bool
    cpu_s: float
    peak_mb: int


def end(process: int, *, alone: bool, within_s: float) -> Ended:
    """Kill `process` and everything below this process, which adopts orphans.

    Repeat until nothing is left or the time is over. alone: this is the first process of a process
    namespace, so that one call kills all others.
    """
    status, count, peak_mb, cpu_s = 0, 0, 0, 0.0
    deadline = time.monotonic() + within_s
    while True:
        _kill(alone)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG if count else 0))[0]:
                count += 1
                cpu_s += ended[2].ru_utime + ended[2].ru_stime
                if ended[0] == process:
                    status, peak_mb = ended[1], ended[2].ru_maxrss >> 10
        clean = not children()
        if clean or time.monotonic() > deadline:
            return Ended(status, count, clean, cpu_s, peak_mb)
        time.sleep(0.001)


def children() -> bool:
    """Return True if this process has children."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def cpu_s() -> float:
    """Return the processor time so far of all below this process, and of what they waited for."""
    ticks = 0
    # By the number that /proc has for this process, which may be another in its namespace.
    for process in below(int(os.readlink("/proc/self"))):
        with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
            ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS


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
