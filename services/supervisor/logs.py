"""Rotation of log files: a large one is copied aside and emptied; the oldest copy goes."""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 20
"""Size of a log file above which it is rotated. It exceeds that only within `EVERY_S`."""
KEPT = 3
"""Copies of each file; `NAME.log.1` is the newest."""
EVERY_S = 5.0


@contextlib.asynccontextmanager
async def kept_small(folder: Path) -> AsyncIterator[None]:
    """Rotate the log files of a folder inside the block."""
    task = asyncio.create_task(_rotate_forever(folder), name="log files")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _rotate_forever(folder: Path) -> None:
    while True:
        await asyncio.to_thread(rotate, folder)
        await asyncio.sleep(EVERY_S)


def rotate(folder: Path) -> None:
    """Rotate all large log files once, also those of processes that have ended."""
    for path in sorted(folder.glob("*.log")):
        try:
            if path.stat().st_size > MOST_BYTES:
                _rotate_file(path)
        except OSError as error:
            # Mostly a full disk: the oldest copy is deleted first, and the next turn tries again.
            log.warning("the log %s is large, and cannot be rotated now: %s", path, error.strerror)


def _rotate_file(path: Path) -> None:
    """Copy a file aside and empty it.

    Processes append, so they go on in the same file without notice.

    Bytes written between the last copied byte and the truncation, some microseconds, are lost.
    """
    copies = [path.with_name(f"{path.name}.{number}") for number in range(1, KEPT + 1)]
    copies[-1].unlink(missing_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    with path.open("rb") as old, aside.open("wb") as new:
        shutil.copyfileobj(old, new)
        shutil.copyfileobj(old, new)  # the bytes that were appended during the first copy
        os.truncate(path, 0)
    for newer, older in zip(reversed(copies[:-1]), reversed(copies[1:]), strict=True):
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)
    aside.replace(copies[0])
