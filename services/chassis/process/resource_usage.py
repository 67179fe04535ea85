"""Processor time, memory and age of this process, and processor time of those below it.

They are read when something takes metrics. Memory, and processes below this one, are read from
/proc: where there is none, they are left out.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from services.chassis.process import telemetry

_PROC = Path("/proc")
_NONE: Mapping[str, str] = {}
_began = time.monotonic()
_Values = Iterator[tuple[float, Mapping[str, str]]]


def watch() -> None:
    """Have them read from now on; nothing is read where nobody takes metrics."""
    telemetry.watch("process.cpu.time", _processor_seconds, rises=True)
    telemetry.watch("process.uptime", _age_seconds)
    if _PROC.joinpath("self/statm").exists():
        below = ProcessesBelow()
        telemetry.watch("process.memory.usage", _resident_bytes)
        telemetry.watch("banyan.children.cpu.time", below.read, rises=True)


def _processor_seconds() -> _Values:
    spent = os.times()
    yield spent.user, {"cpu.mode": "user"}
    yield spent.system, {"cpu.mode": "system"}


def _age_seconds() -> _Values:
    yield time.monotonic() - _began, _NONE


def _resident_bytes() -> _Values:
    pages = int(_PROC.joinpath("self/statm").read_text().split()[1])
    yield float(pages * os.sysconf("SC_PAGE_SIZE")), _NONE


class ProcessesBelow:
    """Processor time of all processes below this one, those that have ended included.

    What a process spent is lost if it ends and nobody waits for it. The total then stands still
    until the others have made up for it, since a counter must not fall.
    """

    def __init__(self) -> None:
        self._most = 0.0

    def read(self) -> _Values:
        """Yield the total in seconds."""
        spent = os.times()
        total = spent.children_user + spent.children_system
        if _has_children():  # without this, each process would read all of the machine's
            total += _ticks_below(os.getpid()) / os.sysconf("SC_CLK_TCK")
        self._most = max(self._most, total)
        yield self._most, _NONE


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _ticks_below(pid: int) -> int:
    """Return the clock ticks of all processes below one, and of those that these waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            parent, ticks[int(entry.name)] = _parent_and_ticks(entry.name)
            children.setdefault(parent, []).append(int(entry.name))
    total, front = 0, [pid]
    while front:
        below = children.get(front.pop(), [])
        total += sum(ticks[child] for child in below)
        front += below
    return total


def _parent_and_ticks(pid: str) -> tuple[int, int]:
    """Return the parent of a process and its clock ticks; zeros if it has ended."""
    try:
        stat = _PROC.joinpath(pid, "stat").read_text()
    except OSError:
        return 0, 0
    fields = stat.rpartition(")")[2].split()  # its name may hold spaces
    return int(fields[1]), sum(map(int, fields[11:15]))
