"""Waits with a timeout, and tasks that run beside other work."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

log = logging.getLogger(__name__)


async def first(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event or the timeout, whichever comes first."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


@contextlib.asynccontextmanager
async def background(coroutine: object) -> AsyncIterator[None]:
    """Run a coroutine within the block, and cancel it at the end."""
    task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
    try:
        yield
    finally:
        task.cancel()


class BackgroundTasks:
    """A set of tasks whose failures are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside everything else."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)
