"""Children that are being ended in the background, so that no answer waits for their remains."""

import asyncio
from typing import Protocol


class Child(Protocol):
    """A child, or a set of them."""

    async def close(self) -> None:
        """End it."""
        ...


class Closing:
    """The children that are being ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def end(self, child: Child) -> None:
        """End a child in the background."""
        task = asyncio.create_task(child.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def one(self) -> None:
        """Wait until one of them has ended."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def all(self) -> None:
        """Wait until all have ended, those that begin meanwhile included."""
        while self._tasks:
            await asyncio.wait(self._tasks)
