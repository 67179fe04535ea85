"""Heavy work off the loop: few threads at a time, and the newest results kept."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from banyan.reasons import Reason
from services.gateway.page.http.errors import HttpError

T = TypeVar("T")
AT_ONCE = 2  # threads: the gateway's loop, and the run itself, need the processor too
WAITING = 32  # requests that may wait for one
KEPT = 8  # results


class Heavy:
    """Runner of heavy work for requests."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._kept: OrderedDict[tuple[str, ...], Any] = OrderedDict()
        self._making: dict[tuple[str, ...], asyncio.Future[Any]] = {}

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of work in a thread. Raise HttpError if too much waits."""
        if self._waiting >= WAITING:
            raise HttpError(
                503, Reason.TEMPORARY, f"{WAITING} heavy requests wait already; ask again"
            )
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1

    async def kept(self, key: tuple[str, ...], make: Callable[[], Awaitable[T]]) -> T:
        """Return a result, from memory if it was made before; requests at once share its making.

        key: changes with the result
        """
        if key in self._kept:
            self._kept.move_to_end(key)
            return cast(T, self._kept[key])
        if key not in self._making:
            self._making[key] = asyncio.ensure_future(self._make(key, make))
        # The making goes on for the others if one of them leaves.
        return cast(T, await asyncio.shield(self._making[key]))

    async def _make(self, key: tuple[str, ...], make: Callable[[], Awaitable[T]]) -> T:
        try:
            self._kept[key] = made = await make()
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return made
        finally:
            del self._making[key]
