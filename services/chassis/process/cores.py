"""The torch threads of a process, which its launcher changes as other runs begin or end.

The launcher writes the number into a file of the process's own; the computing thread reads it
between two steps.
"""

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)
_MOST = 4096  # a process that cannot start its threads ends
_LONGEST = 16  # bytes of a number


class CoreShare:
    """The number of threads that this process may use.

    path: file that the launcher writes; None without a launcher.
    threads: number at the start; None if unknown.
    """

    def __init__(self, path: Path | None, threads: int | None) -> None:
        self._path, self._threads = path, threads
        self._last_read = (0, 0)

    def changed(self) -> int | None:
        """Return the new number, once after each change; None otherwise, or if it is unreadable."""
        if self._path is None:
            return None
        try:
            status = self._path.stat()
            # Two writes may share a tick of the clock, but never an inode.
            version = (status.st_ino, status.st_mtime_ns)
            if version == self._last_read:
                return None
            self._last_read = version
            threads = int(_text(self._path))
        except (OSError, ValueError):
            return None
        if threads == self._threads or not 1 <= threads <= _MOST:
            return None
        self._threads = threads
        return threads


def write(path: Path, threads: int) -> None:
    """Write the number for a process; readers see the old number or the new one. Raise OSError."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # a pipe would wait for a reader, and a link leads elsewhere
    with partial.open("x") as file:
        file.write(str(threads))
    partial.replace(path)


def _text(path: Path) -> bytes:
    """Read the beginning of a plain file without waiting. Raise OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(f"{path} is no plain file")
        return file.read(_LONGEST)


def follow(share: CoreShare) -> Callable[[], None]:
    """Return a function that adapts torch to the share, to be called by the computing thread.

    Torch's number of threads is a setting of the calling thread.
    """

    def settle() -> None:
        if (threads := share.changed()) is not None:
            import torch

            torch.set_num_threads(threads)
            log.info("computing with %d threads from now on: the runs divide the cores", threads)

    return settle
