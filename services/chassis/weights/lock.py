"""Locks of weight files: a shared one to read, an exclusive one to overwrite the pages."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from banyan.errors import NotFound


def recycled(spare: Path, partial: Path, size: int) -> BinaryIO | None:
    """Return the file of a version that is no longer needed, renamed to `partial` and locked.

    Return None, and remove it, if it is read, linked elsewhere or of another size.
    """
    # First the manifest: a reader that locks the file from now on finds none.
    spare.with_suffix(".json").unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        file = open(spare, "r+b")  # noqa: SIM115  closed by the writer
        status = os.fstat(file.fileno())
        if status.st_nlink == 1 and status.st_size == size and _lock(file, fcntl.LOCK_EX):
            os.rename(spare, partial)
            return file
        file.close()
        spare.unlink(missing_ok=True)
    return None


def _lock(file: BinaryIO, how: int) -> bool:
    try:
        fcntl.flock(file.fileno(), how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def held(manifest_path: Path) -> Iterator[BinaryIO]:
    """Yield the open .bin of a version, safe from overwriting. Raise NotFound if it is gone."""
    with present(manifest_path):
        file = open(manifest_path.with_suffix(".bin"), "rb")  # noqa: SIM115  closed below
    with file:
        if not _lock(file, fcntl.LOCK_SH) or not manifest_path.exists():
            raise _gone(manifest_path)
        yield file


@contextlib.contextmanager
def present(manifest_path: Path) -> Iterator[None]:
    """Raise NotFound for a missing file: a version that is no longer needed may go at any time."""
    try:
        yield
    except FileNotFoundError:
        raise _gone(manifest_path) from None


def _gone(manifest_path: Path) -> NotFound:
    return NotFound(
        f"there are no weights at {manifest_path} any more; fetch the newest policy instead"
    )
