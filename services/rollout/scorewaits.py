"""Waits for the scores of trees whose policy decides by them: one call to the store for each, answered when there are more.

A tree waits `score_deadline_s` from when it began to; then its policy goes on without what is missing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from banyan.errors import BanyanError, Refused
from services.rollout.grower import Step
from services.rollout.live import Live
from services.rollout.ports import Store

log = logging.getLogger(__name__)

_CALL_S = 20.0
_AGAIN_S = 1.0
_OVER = frozenset({"STALE_EPOCH", "NOT_GROWING"})  # whoever keeps the claim lets the tree go
Act = Callable[[Live, Callable[[], Step]], Awaitable[None]]
GiveUp = Callable[[Live, Exception], None]


class ScoreWaits:
    """`act` takes a step of a tree and carries it out; `held` says whether the tree is still this node's.

    `give_up` hands a tree back when its wait ends by an unexpected error: nobody else would ever go on with it.
    """

    def __init__(self, store: Store, act: Act, held: Callable[[Live], bool], give_up: GiveUp) -> None:
        self._store, self._act, self._held, self._give_up = store, act, held, give_up

    def due(self, live: Live) -> bool:
        """Whether somebody should begin to wait for this tree."""
        return live.grower.waits and not live.awaiting and not live.finishing

    async def wait(self, live: Live) -> None:
        """Until the tree waits no more."""
        live.awaiting, known = True, 0
        end = time.monotonic() + live.spec.score_deadline_s
        try:
            while self._held(live) and not live.finishing and live.grower.waits:
                left = end - time.monotonic()
                if left <= 0:
                    log.warning("tree %s goes on without scores that did not come", live.spec.tree_id.hex()[:12])
                    await self._act(live, live.grower.unscored)
                    return
                known = await self._look(live, known, min(left, _CALL_S))
        except Exception as error:
            if isinstance(error, Refused) and error.reason in _OVER:
                log.info("tree %s waits for no scores any more: %s", live.spec.tree_id.hex()[:12], error)
            elif self._held(live):
                log.exception("tree %s cannot wait for its scores", live.spec.tree_id.hex()[:12])
                self._give_up(live, error)
        finally:
            live.awaiting = False

    async def _look(self, live: Live, known: int, deadline_s: float) -> int:
        live.touched = time.monotonic()  # to wait is progress, up to the deadline
        try:
            scores = await self._store.scores(live.spec.tree_id, live.epoch, known, deadline_s)
        except BanyanError as error:  # it may pass, and if not the wait ends at its deadline
            if error.reason in _OVER:
                raise
            log.warning("scores are not read: %s", error)
            await asyncio.sleep(_AGAIN_S)
            return known
        if len(scores) > known and self._held(live):
            await self._act(live, partial(live.grower.scored, scores))
        return max(known, len(scores))
