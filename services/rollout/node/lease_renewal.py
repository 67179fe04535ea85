"""Keeps claims while their trees progress.

`in_progress` to the broker and RenewClaim to the store go together, and only for a tree that moved within
`segment_deadline_s`: a tree moves when a segment of it ends, or while it has branches and the engine computes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from banyan.errors import Refused, TemporaryError
from banyan.reasons import Reason
from services.chassis.rpc.health import Pulse
from services.rollout.engines.thread import EngineThread
from services.rollout.node.active_trees import ActiveTree, Trees
from services.rollout.ports import Store

log = logging.getLogger(__name__)

EVERY_S = 5.0  # a third of the broker's ack_wait
_AT_ONCE = 32  # a store that hangs costs one deadline for all of these
_RENEW_S = 3600.0  # a tree that is dropped has its branches stopped, maybe behind a load of weights
Drop = Callable[[ActiveTree, str, bool], Awaitable[None]]


class LeaseRenewer:
    """Renews what progresses. `drop(live, why, ack)` lets a tree go that the store gave to somebody else."""

    def __init__(
        self,
        store: Store,
        thread: EngineThread,
        trees: Trees,
        drop: Drop,
        segment_deadline_s: float,
    ) -> None:
        self._store, self._thread, self._trees, self._drop = store, thread, trees, drop
        self._deadline_s = segment_deadline_s
        self._steps = 0
        self.pulse = Pulse("claims")

    async def run(self) -> None:
        """Renews for ever."""
        while True:
            await self.once()
            self.pulse.beat("a pause", _RENEW_S)
            await asyncio.sleep(EVERY_S)

    async def check(self) -> None:
        """Renews at once what its group may do without, so that the store can say that it does."""
        spare = [live for live in self._trees if live.spec.spare]
        for start in range(0, len(spare), _AT_ONCE):
            await asyncio.gather(*(self._renew(live) for live in spare[start : start + _AT_ONCE]))

    async def once(self) -> None:
        """One round."""
        self.pulse.rest()  # the engine has a pulse of its own
        steps = (
            await self._thread.stats()
        ).steps  # vLLM says of its tokens only when their segment ends
        moved, self._steps = steps > self._steps, steps
        now = time.monotonic()
        for live in self._trees:
            if moved and live.started and not live.finishing and live.grower.in_flight:
                live.touched = now
        due = [live for live in self._trees if now - live.touched <= self._deadline_s]
        for start in range(0, len(due), _AT_ONCE):
            self.pulse.beat("renewals", _RENEW_S)
            await asyncio.gather(*(self._renew(live) for live in due[start : start + _AT_ONCE]))

    async def _renew(self, live: ActiveTree) -> None:
        try:
            await self._store.renew(live.spec.tree_id, live.epoch)
            await live.delivery.in_progress()
        except Refused as error:
            if error.reason == Reason.STALE_EPOCH or not live.finishing:
                await self._drop(live, str(error), error.reason != Reason.STALE_EPOCH)
        except TemporaryError as error:  # the tree progresses all the same: the broker must not give it to somebody else
            log.warning("a claim is not renewed: %s", error)
            await live.delivery.in_progress()
