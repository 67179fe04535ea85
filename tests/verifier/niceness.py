"""How far the children of this process give way to it."""

import os
from collections.abc import Iterator
from pathlib import Path

_OF_SESSION = "autogroup"
SESSION = "nice 5" if Path("/proc/self", _OF_SESSION).exists() else ""
"""What the kernel says of a session that gives way; "" if it does not tell sessions apart."""


def of_children() -> Iterator[tuple[int, str]]:
    """Yield the niceness of each child that leads a session, and that of its session."""
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    for process in (int(word) for file in listed for word in file.read_text().split()):
        if os.getsid(process) == process:
            told = Path(f"/proc/{process}/{_OF_SESSION}").read_text() if SESSION else ""
            yield os.getpriority(os.PRIO_PROCESS, process), told.strip().partition(" ")[2]
