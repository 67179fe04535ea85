"""The limits of a scoring process, and their enforcement by the kernel."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = 64  # of a score that may start no processes
ROUNDS = 5
"""Deadlines that an attempt has at most, where the machine is too busy to run it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one score. Sent to the child as JSON.

    deadline_s: wall-clock time, up to five times as much where the machine is busy; processor time
        is limited to one second more, and half of it at the end of time is a wrong answer.
    rounds: such deadlines.
    memory_mb: address space beyond the warm child's.
    file_mb: size of the largest file that may be written.
    open_files: number of file descriptors.
    processes: processes and threads; 0 forbids new processes, but not threads.
    network: allow sockets to a scorer that asks for them.
    secrets: names of environment variables that scorers may get.
    readable: folders that may be read beside the interpreter's and the module's.
    withheld: files and folders unreadable even in the module's folder: rows, credentials.
    unconfined: score even if the machine cannot confine a score.
    """

    deadline_s: float = 10.0
    rounds: int = ROUNDS
    memory_mb: int = 1024
    file_mb: int = 16
    open_files: int = 64
    processes: int = 64
    network: bool = False
    secrets: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    unconfined: bool = False


def parsed(message: Mapping[str, Any]) -> Limits:
    """Return limits from JSON, which has lists in place of tuples."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in message.items()
    }
    return Limits(**fields)


def apply(limits: Limits, others: int) -> None:
    """Set the limits of this process irrevocably. others: threads of its user beside its own."""
    most = others + 1 + max(limits.processes, THREADS)
    _set(resource.RLIMIT_CPU, int(limits.deadline_s) + 1)
    _set(resource.RLIMIT_AS, _address_space() + (limits.memory_mb << 20))
    _set(resource.RLIMIT_FSIZE, limits.file_mb << 20)
    _set(resource.RLIMIT_NOFILE, limits.open_files)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_NPROC, most)


def threads_of(user: int) -> int:
    """Return the number of threads of a user's processes, which RLIMIT_NPROC counts together."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            count += _threads(folder, user)
    return count


def _threads(folder: Path, user: int) -> int:
    try:
        if folder.stat().st_uid != user:
            return 0
        return int((folder / "stat").read_text().rpartition(")")[2].split()[17])
    except (OSError, IndexError, ValueError):
        return 0  # it has ended meanwhile


def _set(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (allowed, allowed))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
