"""In lockstep the trees of a wave go on together: what came for each is taken when all have it, in their logical order.

So what runs together depends on the trees, and not on whose answer came first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from services.rollout.grower import Step
from services.rollout.live import Live
from services.rollout.waiting import first

_TICK_S = 1.0  # a tree that nobody waits for any more is noticed by then
Work = Callable[[], Step]


class Turns:
    """`growing` are the trees of the wave; `act` takes the steps of many trees and carries them out as one."""

    def __init__(
        self, growing: Callable[[], Sequence[Live]], act: Callable[[Sequence[tuple[Live, Work]]], Awaitable[None]]
    ) -> None:
        self._growing, self._act = growing, act
        self._works: dict[Live, Work] = {}
        self._changed = asyncio.Event()

    async def take(self, live: Live, work: Work) -> None:
        """Until the step was taken with those of the others, or the tree grows here no more."""
        self._works[live] = work
        while live in self._works and live in self._growing():
            if all(other in self._works for other in self._growing()):
                await self._go_on()
            else:
                await first(self._changed, _TICK_S)
                self._changed.clear()
        self._works.pop(live, None)

    async def _go_on(self) -> None:
        works, self._works = self._works, {}
        self._changed.set()
        await self._act(sorted(works.items(), key=lambda item: item[0].spec.order))
