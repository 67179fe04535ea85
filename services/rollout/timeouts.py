"""Waiting with a deadline, and work beside a block."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


async def first(event: asyncio.Event, timeout_s: float) -> None:
    """Waits for an event, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


@contextlib.asynccontextmanager
async def background(coroutine: object) -> AsyncIterator[None]:
    """Runs a coroutine while the block runs."""
    task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
    try:
        yield
    finally:
        task.cancel()
