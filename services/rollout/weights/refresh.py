"""Keeps the engine on the policy that it should sample from. The store says which there are; events only say look again."""

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from banyan.errors import BanyanError
from banyan.policy import PolicyVersion
from services.chassis.process import telemetry
from services.rollout.engines.port import UNPROVEN, Sampled
from services.rollout.engines.thread import EngineThread
from services.rollout.growth import policy_selection
from services.rollout.growth.policy_selection import Published
from services.rollout.growth.spec import GrowSpec
from services.rollout.ports import Source, Store

log = logging.getLogger(__name__)

_RETRY_S = 1.0
UNFIT_S = 60.0  # tries of one engine; a new process is the next thing to try


class Refresher:
    """The policies of a run and the one that is loaded. Without `weights` (scripted engine) no file is read.

    drain_s: how long what runs may go on, while nothing more is admitted, before a new policy cuts it; 0 for not at all.
    """

    def __init__(
        self,
        store: Store,
        thread: EngineThread,
        weights: Source | None,
        node_id: str,
        drain_s: float = 0.0,
    ) -> None:
        self._store, self._thread, self._weights, self._node_id = store, thread, weights, node_id
        self._drain_s, self._unproven = drain_s, 0
        self._known: list[Published] = []
        self._not_before = 0.0
        self._unfit_since = 0.0
        self.loaded: PolicyVersion | None = None

    @property
    def fit(self) -> bool:
        """Whether the engine is known to compute with the policy that it has; until then it samples nothing."""
        return not self._unfit_since

    async def look(self) -> None:
        """Reads the policies from the store."""
        self._known = await self._store.policies()

    async def refresh(self, live: Sequence[GrowSpec], pending: Sequence[GrowSpec]) -> list[Sampled]:
        """Loads the policy that is wanted, if another one is in use; returns the segments that this cut.

        Raises what the engine said, once no update could be proven for UNFIT_S.
        """
        target = policy_selection.wanted(
            self._known, self.loaded if self.fit else None, live, pending
        )
        if target is None or time.monotonic() < self._not_before:
            return []
        try:
            return await self._load(target)
        except BanyanError as error:
            # The learner may be writing it anew, or be away; the trees that need it wait, up to their deadline.
            log.warning("policy step %d is not loaded: %s", target.policy.step, error)
            self._not_before = time.monotonic() + _RETRY_S
            if error.reason == UNPROVEN:
                self._unfit_since = self._unfit_since or time.monotonic()
                if time.monotonic() - self._unfit_since > UNFIT_S:
                    raise
            elif not self.fit:  # nothing was tried: the learner is away
                self._unfit_since = time.monotonic()
            return []

    async def _load(self, target: Published) -> list[Sampled]:
        step, begun = target.policy.step, time.monotonic()
        with telemetry.span(
            "rollout.refresh",
            banyan_node=self._node_id,
            banyan_policy_step=step,
            banyan_bytes=target.bytes,
        ):
            async with contextlib.AsyncExitStack() as stack:
                path = (
                    await stack.enter_async_context(self._weights.held(target))
                    if self._weights is not None
                    else None
                )
                cut = await self._take(target, path)
        self.loaded, self._unfit_since = target.policy, 0.0
        telemetry.count("banyan.weights.bytes", target.bytes)
        await self._count_unproven()
        took = time.monotonic() - begun
        log.info(
            "policy step %d (epoch %d) loaded in %.3f s; %d branches cut",
            step,
            target.policy.epoch,
            took,
            len(cut),
        )
        return cut

    async def _take(self, target: Published, weights: Path | None) -> list[Sampled]:
        """Lets running branches end, for a while, and loads; the segments that were cut."""
        if self._drain_s and not await self._thread.drain(self._drain_s):
            step = target.policy.step
            log.info(
                "policy step %d waited %.1f s for running branches; the rest is cut",
                step,
                self._drain_s,
            )
        try:
            return await self._thread.load(target.policy, weights, target.bytes)
        except BanyanError:
            await self._thread.admit()
            raise

    async def _count_unproven(self) -> None:
        found = (await self._thread.stats()).unproven
        telemetry.count("banyan.weights.unproven", found - self._unproven)
        self._unproven = found
