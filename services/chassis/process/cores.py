"""Torch threads of a process whose launcher divides the cores anew while it runs: as another run begins or ends.

The launcher writes the number into a file of the process's own; the thread that computes looks at it between two steps.
"""

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)
_MOST = 4096  # as a recipe may ask for (resources.threads); a process that cannot start its threads ends
_LONGEST = 16  # bytes of a number


class CoreShare:
    """How many threads this process may use. path: where its launcher writes it; None where nobody does."""

    def __init__(self, path: Path | None, threads: int | None) -> None:
        self._path, self._threads, self._read = path, threads, (0, 0)

    def changed(self) -> int | None:
        """The new number, once after it was written; None while it is as it was, or not a number."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
            written = found.st_ino, found.st_mtime_ns  # two writes may share a clock tick, never a file
            if written == self._read:
                return None
            self._read, threads = written, int(_text(self._path))
        except (OSError, ValueError):
            return None
        if threads == self._threads or not 1 <= threads <= _MOST:
            return None
        self._threads = threads
        return threads


def write(path: Path, threads: int) -> None:
    """The launcher's side: readers see the old number or the new one. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # a pipe would wait for whoever reads it, and a link leads elsewhere
    with partial.open("x") as file:
        file.write(str(threads))
    partial.replace(path)


def _text(path: Path) -> bytes:
    """The beginning of a plain file; it never waits. Raises OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(f"{path} is no plain file")
        return file.read(_LONGEST)


def follow(share: CoreShare) -> Callable[[], None]:
    """A call that brings torch to the share; for the thread that computes, whose number of threads is its own."""

    def settle() -> None:
        if (threads := share.changed()) is not None:
            import torch

            torch.set_num_threads(threads)
            log.info("computing with %d threads from now on: the runs that there are divide the cores", threads)

    return settle
