"""Wakes those who wait for a tree to change, or for the list of desired processes; nobody polls the
database.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

T = TypeVar("T")


class Notifier:
    """Waiters by key."""

    def __init__(self) -> None:
        self._waiters: dict[object, set[asyncio.Event]] = {}

    def notify(self, keys: Iterable[object]) -> None:
        """Wakes all who wait for one of the keys."""
        for key in keys:
            for event in self._waiters.get(key, ()):
                event.set()

    async def until(
        self,
        keys: Collection[object],
        look: Callable[[], Awaitable[T]],
        enough: Callable[[T], bool],
        deadline_s: float,
    ) -> T:
        """Looks, and again after each change of a key, until it is enough or the deadline is over;
        the last look.
        """
        end = time.monotonic() + deadline_s
        event = asyncio.Event()
        for key in keys:
            self._waiters.setdefault(key, set()).add(event)
        try:
            while True:
                event.clear()  # before the look, so that a change during it is not lost
                seen = await look()
                left = end - time.monotonic()
                if enough(seen) or left <= 0:
                    return seen
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await event.wait()
        finally:
            self._leave(keys, event)

    def _leave(self, keys: Collection[object], event: asyncio.Event) -> None:
        for key in keys:
            waiters = self._waiters[key]
            waiters.discard(event)
            if not waiters:
                del self._waiters[key]
