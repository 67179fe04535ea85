"""Usage of processor time, memory and disk by a run, all its processes together."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# A program that stopped itself, or whose first thread has ended, waits by its own doing.
_SLEEPING = frozenset("SItTZX")


@dataclass(frozen=True, slots=True)
class Usage:
    """A reading.

    cpu_s: processor time of the processes and of their ended children.
    memory: bytes in memory, shared ones counted with each.
    processes: processes.
    asleep: none of them wants to run.
    """

    cpu_s: float
    memory: int
    processes: int
    asleep: bool


def of(processes: Iterable[int]) -> Usage:
    """Read the usage of processes; those that have ended count for nothing."""
    ticks = pages = count = 0
    asleep = True
    for process in processes:
        try:
            with open(f"/proc/{process}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        count += 1
        ticks += sum(int(field) for field in fields[11:15])
        pages += int(fields[21])
        asleep = asleep and _sleeps(process, fields)
    return Usage(ticks / _TICKS, pages * _PAGE, count, asleep)


def _sleeps(process: int, fields: list[str]) -> bool:
    """Return True if no thread of a process wants to run."""
    if fields[0] not in _SLEEPING:
        return False
    if int(fields[17]) == 1:
        return True
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in _SLEEPING:
                    return False
    except OSError:
        return False
    return True


def of_folder(folder: str, most: int) -> tuple[int, int]:
    """Return bytes and entries below a folder; no more than `most` + 1 entries are counted."""
    size = count = 0
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            entries = list(os.scandir(path))
        except PermissionError:  # made without rights by a program of our own user
            os.chmod(path, 0o700)
            waiting.append(path)
            continue
        except OSError:
            continue
        for entry in entries:
            count += 1
            if count > most:
                return size, count
            try:
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
            except OSError:
                continue
    return size, count
