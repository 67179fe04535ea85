"""The log files of processes stay small: one that is large is copied aside and begun anew; the oldest copy goes."""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 20
"""Of a log file, above which it is begun anew; a process says more than that only within `EVERY_S`."""
KEPT = 3
"""Copies of each, `NAME.log.1` the newest."""
EVERY_S = 5.0


@contextlib.asynccontextmanager
async def kept_small(folder: Path) -> AsyncIterator[None]:
    """Look after the log files of a folder inside the block."""
    task = asyncio.create_task(_look(folder), name="log files")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _look(folder: Path) -> None:
    while True:
        await asyncio.to_thread(look, folder)
        await asyncio.sleep(EVERY_S)


def look(folder: Path) -> None:
    """One look at all log files, also of processes that are gone."""
    for path in sorted(folder.glob("*.log")):
        try:
            if path.stat().st_size > MOST_BYTES:
                _begin_anew(path)
        except OSError as error:
            # a full disk, mostly: the copies that are there go first, and the next look tries again
            log.warning(
                "the log %s is large, and cannot be begun anew now: %s", path, error.strerror
            )


def _begin_anew(path: Path) -> None:
    """Copy a file aside and empty it. Processes append, so they go on in the same file and need not be told.

    What a process says between the last byte that was copied and the truncation, some microseconds, is in neither.
    """
    copies = [path.with_name(f"{path.name}.{number}") for number in range(1, KEPT + 1)]
    copies[-1].unlink(missing_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    with path.open("rb") as old, aside.open("wb") as new:
        shutil.copyfileobj(old, new)
        shutil.copyfileobj(old, new)  # what came while the first copy was made
        os.truncate(path, 0)
    for newer, older in zip(reversed(copies[:-1]), reversed(copies[1:]), strict=True):
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)
    aside.replace(copies[0])
