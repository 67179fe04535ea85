"""Who reads a weight file, and who may write over it: a shared lock to read, an exclusive one to use its pages again."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from banyan.errors import NotFound


def recycled(spare: Path, aside: Path, size: int) -> BinaryIO | None:
    """The file of a version that is wanted no more, under the name `aside` and locked; None if it cannot be had."""
    spare.with_suffix(".json").unlink(
        missing_ok=True
    )  # first: whoever locks it from now on finds no manifest
    with contextlib.suppress(FileNotFoundError):
        file = open(spare, "r+b")  # noqa: SIM115  closed by who writes it
        status = os.fstat(file.fileno())
        if status.st_nlink == 1 and status.st_size == size and _lock(file, fcntl.LOCK_EX):
            os.rename(spare, aside)
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
    """Keeps a version from being written over while it is read; its open .bin. Raises NotFound if it is gone."""
    with present(manifest_path):
        file = open(manifest_path.with_suffix(".bin"), "rb")  # noqa: SIM115  closed below
    with file:
        if not _lock(file, fcntl.LOCK_SH) or not manifest_path.exists():
            raise _gone(manifest_path)
        yield file


@contextlib.contextmanager
def present(manifest_path: Path) -> Iterator[None]:
    """Says NotFound where a file of the version is missing: one that is wanted no more may go at any time."""
    try:
        yield
    except FileNotFoundError:
        raise _gone(manifest_path) from None


def _gone(manifest_path: Path) -> NotFound:
    return NotFound(
        f"there are no weights at {manifest_path} any more; fetch the newest policy instead"
    )
