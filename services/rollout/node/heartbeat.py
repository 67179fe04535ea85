"""Presence of a node in the store and, for a joined node, the end of its run.

A joined node has no launcher that stops it: it ends when the store reports that the run is over, or
when the store has been silent for long.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from banyan.errors import BanyanError, DeadlineMissed, TemporaryError
from banyan.policy import PolicyVersion
from banyan.v1 import runstore_service_pb2
from services.chassis.rpc.health import Pulse
from services.rollout.engines.port import EngineStats
from services.rollout.node.active_trees import ActiveTrees
from services.rollout.ports import Load, Store

log = logging.getLogger(__name__)

EVERY_S = 2.0  # a fifth of the time after which the store counts a silent node no more
POLL_S = 1.0  # a joined node must see the end before the launcher closes the gateway
SILENCE_S = 90.0
_LEAVE_S = 2.0
_TURN_S = 120.0  # two calls, each with its own deadline, and a pause
OVER = (
    runstore_service_pb2.RUN_STATE_SUCCEEDED,
    runstore_service_pb2.RUN_STATE_FAILED,
    runstore_service_pb2.RUN_STATE_CANCELLED,
)


def load_of(stats: EngineStats, slots: int, loaded: PolicyVersion | None = None) -> Load:
    """Return what an engine of so many slots has decoded: a token a step for each segment.

    loaded: the policy that it samples from; None before any.
    """
    return Load(
        decoded=stats.sampled_tokens,
        slots=stats.steps * slots,
        policy_step=loaded.step if loaded else None,
    )


class Heartbeat:
    """The loop that reports the node's presence.

    store: the tree store.
    trees: trees of the node, for their count.
    joined: whether the node came by `banyan join`.
    load: returns what its engine has decoded.

    Attributes:
    over: set when the run of a joined node is over.
    """

    def __init__(
        self, store: Store, trees: ActiveTrees, joined: bool, load: Callable[[], Load] = Load
    ) -> None:
        self._store, self._trees, self._joined, self._load = store, trees, joined, load
        self.over = asyncio.Event()
        self.pulse = Pulse("presence")

    async def run(self) -> None:
        """Report until cancelled.

        Raises DeadlineMissed in a joined node once the store has been silent for SILENCE_S.
        """
        reported_at, answered_at = -EVERY_S, time.monotonic()
        while True:
            now = time.monotonic()
            self.pulse.beat("a word to the store", _TURN_S)
            try:
                if now - reported_at >= EVERY_S:
                    await self._store.present(self._trees.grown, self._load())
                    reported_at = now
                if self._joined and (await self._store.run()).state in OVER:
                    log.info("the run is over; %d trees were grown here", self._trees.grown)
                    self.over.set()
                answered_at = now
            except TemporaryError as error:
                self._missed(error, now - answered_at)
            await asyncio.sleep(POLL_S if self._joined else EVERY_S)

    async def leave(self) -> None:
        """Report that the node leaves, if the store answers."""
        with contextlib.suppress(BanyanError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._store.present(self._trees.grown, self._load(), leaving=True)

    def _missed(self, error: TemporaryError, silent_s: float) -> None:
        log.warning("the store does not answer: %s", error)
        if self._joined and silent_s > SILENCE_S:
            raise DeadlineMissed(
                f"nothing was heard of the run for {silent_s:.0f} s: it was stopped, or the"
                " network is down; join again when it goes on"
            )
