"""Keeps claims while their trees progress, and tells the store that the node is there.

`in_progress` to the broker and RenewClaim to the store go together, and only for a tree that moved within
`segment_deadline_s`: a tree moves when a segment of it ends, or while it has branches and the engine samples.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from banyan.errors import Refused, TemporaryError
from banyan.v1 import runstore_service_pb2
from services.rollout.engines.thread import EngineThread
from services.rollout.live import Live, Trees
from services.rollout.ports import Store

log = logging.getLogger(__name__)

EVERY_S = 10.0  # a third of the broker's ack_wait
GONE_S = 90.0  # after so long without an answer a joined node takes the run for over
_OVER = (
    runstore_service_pb2.RUN_STATE_SUCCEEDED,
    runstore_service_pb2.RUN_STATE_FAILED,
    runstore_service_pb2.RUN_STATE_CANCELLED,
)
Drop = Callable[[Live, str, bool], Awaitable[None]]


class Keeper:
    """Renews what progresses. `drop(live, why, ack)` lets a tree go that the store gave to somebody else."""

    def __init__(self, store: Store, thread: EngineThread, trees: Trees, drop: Drop, segment_deadline_s: float) -> None:
        self._store, self._thread, self._trees, self._drop = store, thread, trees, drop
        self._deadline_s = segment_deadline_s
        self._sampled = 0
        self._heard = time.monotonic()
        self.run_over = asyncio.Event()

    async def run(self) -> None:
        """Renews for ever."""
        while True:
            await self.once()
            await asyncio.sleep(EVERY_S)

    async def once(self) -> None:
        """One round."""
        sampled = (await self._thread.stats()).sampled_tokens
        moved, self._sampled = sampled > self._sampled, sampled
        now = time.monotonic()
        for live in self._trees:
            if moved and live.started and not live.finishing:
                live.touched = now
            if now - live.touched <= self._deadline_s:
                await self._renew(live)
        await self._tell()

    async def _renew(self, live: Live) -> None:
        try:
            await self._store.renew(live.spec.tree_id, live.epoch)
            await live.delivery.in_progress()
        except Refused as error:
            if error.reason == "STALE_EPOCH" or not live.finishing:
                await self._drop(live, str(error), error.reason != "STALE_EPOCH")
        except TemporaryError as error:
            log.warning("a claim is not renewed: %s", error)

    async def _tell(self) -> None:
        try:
            await self._store.present(self._trees.grown)
            if (await self._store.run()).state in _OVER:
                self.run_over.set()
            self._heard = time.monotonic()
        except TemporaryError as error:
            log.warning("the store does not answer: %s", error)
            if time.monotonic() - self._heard > GONE_S:
                log.warning("nothing was heard of the run for %.0f s", GONE_S)
                self.run_over.set()
