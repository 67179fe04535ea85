"""How much a scoring process may take, and the kernel's limits that say so."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_THREADS = 64  # of a score that may start no processes


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one scoring. Sent to the child as JSON."""

    deadline_s: float = 10.0
    """Wall-clock time of one score; processor time is limited to one second more."""
    memory_mb: int = 1024
    """Address space beyond what the warm child has."""
    file_mb: int = 16
    """Largest file that may be written."""
    open_files: int = 64
    """File descriptors."""
    processes: int = 64
    """Processes and threads of one score; 0 forbids new processes, not threads."""
    network: bool = False
    """Whether sockets may be opened."""
    readable: tuple[str, ...] = ()
    """Folders that may be read beside the interpreter's and the module's."""
    withheld: tuple[str, ...] = ()
    """Files and folders that may not be read where they lie in the module's folder: rows, credentials."""
    unconfined: bool = False
    """Whether to score where the machine cannot confine a score."""


def parsed(message: Mapping[str, Any]) -> Limits:
    """Limits from JSON, which knows no tuples."""
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in message.items()
    }
    return Limits(**given)


def apply(limits: Limits, others: int) -> None:
    """Sets the limits of this process, for good. others: threads that its user has beside it."""
    most = others + 1 + max(limits.processes, _THREADS)
    _set(resource.RLIMIT_CPU, int(limits.deadline_s) + 1)
    _set(resource.RLIMIT_AS, _address_space() + (limits.memory_mb << 20))
    _set(resource.RLIMIT_FSIZE, limits.file_mb << 20)
    _set(resource.RLIMIT_NOFILE, limits.open_files)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_NPROC, most)


def threads_of(user: int) -> int:
    """Threads of a user's processes, which RLIMIT_NPROC counts together."""
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
        return 0  # it ended while we looked


def _set(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (allowed, allowed))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
