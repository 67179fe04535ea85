"""Processor time of each service a step, read from the kernel.

It depends less on what else the machine does than a step's seconds.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.supervisor.supervisor import Supervisor

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    """Processor time of a process, in seconds.

    whole: all its threads, and the children that it has waited for
    loop: the main thread, which runs the event loop; the others train, sample, and serve gRPC
    """

    whole: float
    loop: float

    def __sub__(self, before: "Spent") -> "Spent":
        return Spent(self.whole - before.whole, self.loop - before.loop)

    def __truediv__(self, steps: int) -> "Spent":
        return Spent(self.whole / steps, self.loop / steps)


@dataclass(frozen=True)
class Step:
    """Mean step of a run: its seconds, and the processor time of each service."""

    seconds: float
    services: Mapping[str, Spent]


def spent(pid: int) -> Spent:
    """Read the processor time of a process."""
    whole = _fields(Path(f"/proc/{pid}/stat"))
    loop = _fields(Path(f"/proc/{pid}/task/{pid}/stat"))
    return Spent(sum(whole[11:15]) / _TICKS, sum(loop[11:13]) / _TICKS)


def of_services(supervisor: Supervisor) -> dict[str, Spent]:
    """Read the processor time of every service; processes of a service count together."""
    total: dict[str, Spent] = {}
    for child in supervisor.children.values():
        if child.running:
            one, rest = spent(child.pid), total.get(child.service, Spent(0.0, 0.0))
            total[child.service] = Spent(one.whole + rest.whole, one.loop + rest.loop)
    return total


def _fields(path: Path) -> list[int]:
    """Read the numbers after the name, which may hold spaces, and the state."""
    _, *numbers = path.read_text().rpartition(")")[2].split()
    return [0, *map(int, numbers)]
