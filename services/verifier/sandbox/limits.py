"""How much a scoring process may take, and the kernel's limits that say so."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path


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
    """Processes and threads beyond those that the user has; 0 forbids new processes, not threads."""
    network: bool = False
    """Whether sockets may be opened."""
    readable: tuple[str, ...] = ()
    """Folders that may be read beside the interpreter's and the modules'."""


def apply(limits: Limits, threads_now: int) -> None:
    """Sets the limits of this process, for good."""
    most = threads_now + max(limits.processes, 64)
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
