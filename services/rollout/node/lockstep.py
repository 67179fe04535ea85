"""In lockstep the trees of a wave go on together: what came for each is taken when all have it, in their logical order.

So what runs together depends on the trees, and not on whose answer came first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from services.rollout.growth.grower import GrowthStep
from services.rollout.node.active_trees import ActiveTree
from services.rollout.timeouts import first

log = logging.getLogger(__name__)

_TICK_S = 1.0  # a tree that nobody waits for any more is noticed by then
Work = Callable[[], GrowthStep]
Act = Callable[[Sequence[tuple[ActiveTree, Work]]], Awaitable[None]]
GiveUp = Callable[[ActiveTree, Exception], None]


class Lockstep:
    """`growing` are the trees of the wave; `act` takes the steps of many trees and carries them out as one.

    `give_up` hands back each tree of a turn that could not be carried out: what it grew here is told to nobody.
    """

    def __init__(
        self, growing: Callable[[], Sequence[ActiveTree]], act: Act, give_up: GiveUp
    ) -> None:
        self._growing, self._act, self._give_up = growing, act, give_up
        self._works: dict[ActiveTree, Work] = {}
        self._changed = asyncio.Event()

    async def take(self, live: ActiveTree, work: Work) -> None:
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
        turn = sorted(works.items(), key=lambda item: item[0].spec.order)
        try:
            await self._act(turn)
        except Exception as error:
            log.exception("a turn of %d trees cannot be carried out", len(turn))
            for live, _ in turn:
                if live in self._growing():
                    self._give_up(live, error)
