"""Wake-ups for calls that wait for a tree, a run or the list of desired processes to change; no
call polls the database.
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
        """Wake all waiters for one of the keys."""
        for key in keys:
            for event in self._waiters.get(key, ()):
                event.set()

    async def until(
        self,
        keys: Collection[object],
        read: Callable[[], Awaitable[T]],
        enough: Callable[[T], bool],
        deadline_s: float,
    ) -> T:
        """Read now, and again after each notification of a key, until the result is enough or the
        deadline is over; return the last result.

        keys: keys to wait for
        read: reads the current state
        enough: tells whether a result ends the wait
        deadline_s: seconds to wait at most
        """
        end = time.monotonic() + deadline_s
        event = asyncio.Event()
        for key in keys:
            self._waiters.setdefault(key, set()).add(event)
        try:
            while True:
                event.clear()  # before the read, so that a change during it is not lost
                result = await read()
                left = end - time.monotonic()
                if enough(result) or left <= 0:
                    return result
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
