"""Renewal of claims while their trees progress.

`in_progress` to the broker and RenewClaim to the store go together, and only for a tree that
progressed within `segment_deadline_s`: a segment of it ended, or it has branches and the engine
computes (docs/protocol.md, Keeping a claim).
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from banyan.errors import Refused, TemporaryError
from banyan.reasons import Reason
from services.chassis.messaging.assignments import ACK_WAIT_S
from services.chassis.rpc.health import Pulse
from services.rollout.engines.thread import EngineThread
from services.rollout.node.active_trees import ActiveTree, ActiveTrees
from services.rollout.node.step_executor import StepExecutor
from services.rollout.ports import Store

log = logging.getLogger(__name__)

EVERY_S = ACK_WAIT_S / 3
_AT_ONCE = 32  # a store that hangs costs one deadline for all of these
_RENEW_S = 3600.0  # a dropped tree has its branches stopped, maybe after a load of weights


class LeaseRenewer:
    """The loop that renews claims.

    store: the tree store.
    thread: the engine's thread, for its count of steps.
    trees: trees of the node.
    executor: drops the trees that the store gave to another node.
    segment_deadline_s: time without progress after which a claim is no longer renewed.
    """

    def __init__(
        self,
        store: Store,
        thread: EngineThread,
        trees: ActiveTrees,
        *,
        executor: StepExecutor,
        segment_deadline_s: float,
    ) -> None:
        self._store, self._thread, self._trees = store, thread, trees
        self._executor, self._deadline_s = executor, segment_deadline_s
        self._steps = 0
        self.pulse = Pulse("claims")

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await self.renew_progressing()
            self.pulse.beat("a pause", _RENEW_S)
            await asyncio.sleep(EVERY_S)

    async def renew_spare(self) -> None:
        """Renew the trees that their groups can do without, so that the store can end them."""
        spare = [tree for tree in self._trees if tree.spec.spare]
        for start in range(0, len(spare), _AT_ONCE):
            await self._renew_all(spare[start : start + _AT_ONCE])

    async def renew_progressing(self) -> None:
        """Renew the trees that progress."""
        self.pulse.rest()  # the engine has a pulse of its own
        steps = (await self._thread.stats()).steps  # vLLM counts tokens only when a segment ends
        computes = steps > self._steps
        self._steps = steps
        now = time.monotonic()
        for tree in self._trees:
            if computes and tree.is_growing and tree.grower.in_flight:
                tree.progressed_at = now
        due = [tree for tree in self._trees if now - tree.progressed_at <= self._deadline_s]
        for start in range(0, len(due), _AT_ONCE):
            self.pulse.beat("renewals", _RENEW_S)
            await self._renew_all(due[start : start + _AT_ONCE])

    async def _renew_all(self, trees: Sequence[ActiveTree]) -> None:
        await asyncio.gather(*(self._renew(tree) for tree in trees))

    async def _renew(self, tree: ActiveTree) -> None:
        try:
            await self._store.renew(tree.spec.tree_id, tree.epoch)
            await tree.delivery.in_progress()
        except Refused as error:
            is_stale = error.reason == Reason.STALE_EPOCH
            if is_stale or not tree.is_finishing:
                await self._executor.drop(tree, str(error), ack=not is_stale)
        except TemporaryError as error:  # the tree progresses: the broker must not redeliver it
            log.warning("a claim is not renewed: %s", error)
            await tree.delivery.in_progress()
