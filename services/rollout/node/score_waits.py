"""Waits for the scores of trees whose policy decides by them, and for the room of those that grow by it: one call to the
store for each, answered when there is more.

A tree waits `score_deadline_s` for scores; then its policy goes on without what is missing. For room it waits twice as long,
from when it began to or from the last round: control itself waits once as long for the others of a round. Where control is
silent the tree ends with what it has.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from banyan.errors import BanyanError, Refused
from banyan.reasons import Reason
from services.rollout.growth.grower import GrowthStep
from services.rollout.node.active_trees import ActiveTree
from services.rollout.ports import Store

log = logging.getLogger(__name__)

_CALL_S = 20.0
_AGAIN_S = 1.0
_ROUNDS = (
    2.0  # score deadlines: control waits one for the others of a round, and may be away for a while
)
_ANY = (1 << 32) - 1  # scores known, of a policy that does not need them
_OVER = frozenset(
    {Reason.STALE_EPOCH, Reason.NOT_GROWING}
)  # whoever keeps the claim lets the tree go
Act = Callable[[ActiveTree, Callable[[], GrowthStep]], Awaitable[None]]
GiveUp = Callable[[ActiveTree, Exception], None]


class ScoreWaits:
    """`act` takes a step of a tree and carries it out; `held` says whether the tree is still this node's.

    `give_up` hands a tree back when its wait ends by an unexpected error: nobody else would ever go on with it.
    """

    def __init__(
        self, store: Store, act: Act, held: Callable[[ActiveTree], bool], give_up: GiveUp
    ) -> None:
        self._store, self._act, self._held, self._give_up = store, act, held, give_up

    def due(self, live: ActiveTree) -> bool:
        """Whether somebody should begin to wait for this tree."""
        return live.grower.waits and not live.awaiting and not live.finishing

    async def wait(self, live: ActiveTree) -> None:
        """Until the tree waits no more."""
        live.awaiting, known = True, 0
        since, grower = time.monotonic(), live.grower
        try:
            while self._held(live) and not live.finishing and grower.waits:
                round, left = grower.round, since + _patience(live) - time.monotonic()
                if left > 0:
                    known = await self._look(live, known, min(left, _CALL_S))
                else:
                    await self._go_on(live)
                if left <= 0 or grower.round > round:
                    since = time.monotonic()
        except Exception as error:
            if isinstance(error, Refused) and error.reason in _OVER:
                log.info("tree %s waits no more: %s", live.spec.tree_id.hex()[:12], error)
            elif self._held(live):
                log.exception("tree %s cannot wait", live.spec.tree_id.hex()[:12])
                self._give_up(live, error)
        finally:
            live.awaiting = False

    async def _go_on(self, live: ActiveTree) -> None:
        """What did not come is not waited for any more."""
        tree, scores = live.spec.tree_id.hex()[:12], live.grower.lacks_scores
        if scores:
            log.warning("tree %s goes on without scores that did not come", tree)
        else:
            log.warning(
                "tree %s ends with %d leaves: control gave it no room",
                tree,
                len(live.grower.leaves),
            )
        await self._act(live, live.grower.unscored if scores else live.grower.unroomed)

    async def _look(self, live: ActiveTree, known: int, deadline_s: float) -> int:
        live.touched = time.monotonic()  # to wait is progress, up to the deadline
        policy, grower = live.spec.policy, live.grower
        least = known if getattr(policy, "needs_scores", False) else _ANY
        round = grower.round if getattr(policy, "needs_room", False) else None
        try:
            came = await self._store.awaited(
                live.spec.tree_id, live.epoch, least, round, deadline_s
            )
        except BanyanError as error:  # it may pass, and if not the wait ends at its deadline
            if error.reason in _OVER:
                raise
            log.warning("what came for a tree is not read: %s", error)
            await asyncio.sleep(_AGAIN_S)
            return known
        if len(came.scores) > least and self._held(live):
            await self._act(live, partial(grower.scored, came.scores))
        if (
            round is not None
            and came.room is not None
            and came.room.round > round
            and self._held(live)
        ):
            await self._act(live, partial(grower.roomed, came.room))
        return max(known, len(came.scores))


def _patience(live: ActiveTree) -> float:
    return live.spec.score_deadline_s * (1 if live.grower.lacks_scores else _ROUNDS)
