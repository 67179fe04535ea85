"""Torch threads of a process whose launcher divides the cores anew while it runs: as another run begins or ends.

The launcher writes the number into a file of the process's own; the thread that computes looks at it between two steps.
"""

import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)


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
            written = (
                found.st_ino,
                found.st_mtime_ns,
            )  # two writes may share a clock tick, never a file
            if written == self._read:
                return None
            self._read, threads = written, int(self._path.read_text())
        except (OSError, ValueError):
            return None
        if threads == self._threads or threads < 1:
            return None
        self._threads = threads
        return threads


def write(path: Path, threads: int) -> None:
    """The launcher's side: readers see the old number or the new one. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(str(threads))
    partial.replace(path)


def follow(share: CoreShare) -> Callable[[], None]:
    """A call that brings torch to the share; for the thread that computes, whose number of threads is its own."""

    def settle() -> None:
        if (threads := share.changed()) is not None:
            import torch

            torch.set_num_threads(threads)
            log.info(
                "computing with %d threads from now on: the runs that there are divide the cores",
                threads,
            )

    return settle
