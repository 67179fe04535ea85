"""The policy that the engine samples from, kept up to date.

The store knows which policies there are; events only trigger a poll.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
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
UNFIT_S = 60.0  # tries of one engine; after them a new process is the next thing to try


class Refresher:
    """The policies of a run, and the one that is loaded.

    store: the tree store.
    thread: the engine's thread.
    weights: source of weight files; None for the scripted engine, which reads none.
    node_id: name of the node, for traces.
    drain_s: time that running branches may still take before a new policy cuts them, while nothing
        more is admitted; 0 cuts them at once.
    """

    def __init__(
        self,
        store: Store,
        thread: EngineThread,
        weights: Source | None,
        node_id: str,
        drain_s: float = 0.0,
    ) -> None:
        self._store, self._thread, self._weights = store, thread, weights
        self._node_id, self._drain_s = node_id, drain_s
        self._policies: list[Published] = []
        self._not_before = 0.0
        self._unfit_since = 0.0
        self._unproven = 0
        self.loaded: PolicyVersion | None = None
        telemetry.watch("banyan.engine.policy_step", self._loaded_step)

    @property
    def fit(self) -> bool:
        """True if the engine is known to compute with its policy; otherwise it samples nothing."""
        return not self._unfit_since

    async def poll(self) -> None:
        """Read the policies from the store."""
        self._policies = await self._store.policies()

    async def refresh(
        self, growing: Sequence[GrowSpec], pending: Sequence[GrowSpec]
    ) -> list[Sampled]:
        """Load the wanted policy if it is another one; return the segments that this cut.

        Raises the engine's error once no update could be proven for UNFIT_S.
        """
        loaded = self.loaded if self.fit else None
        target = policy_selection.wanted(self._policies, loaded, growing, pending)
        if target is None or time.monotonic() < self._not_before:
            return []
        try:
            return await self._load(target)
        except BanyanError as error:
            # The learner may be writing it anew, or be away; trees wait for it up to a deadline.
            log.warning("policy step %d is not loaded: %s", target.policy.step, error)
            now = time.monotonic()
            self._not_before = now + _RETRY_S
            if error.reason == UNPROVEN:
                self._unfit_since = self._unfit_since or now
                if now - self._unfit_since > UNFIT_S:
                    raise
            elif not self.fit:  # nothing was tried: the learner is away
                self._unfit_since = now
            return []

    async def _load(self, target: Published) -> list[Sampled]:
        step, begun = target.policy.step, time.monotonic()
        span = telemetry.span(
            "rollout.refresh",
            links=[target.traceparent],
            banyan_node=self._node_id,
            banyan_policy_step=step,
            banyan_bytes=target.bytes,
        )
        with span:
            async with contextlib.AsyncExitStack() as stack:
                manifest_path = None
                if self._weights is not None:
                    manifest_path = await stack.enter_async_context(self._weights.held(target))
                cut = await self._drain_and_load(target, manifest_path)
        self.loaded, self._unfit_since = target.policy, 0.0
        telemetry.count("banyan.weights.bytes", target.bytes)
        await self._count_unproven()
        log.info(
            "policy step %d (epoch %d) loaded in %.3f s; %d branches cut",
            step,
            target.policy.epoch,
            time.monotonic() - begun,
            len(cut),
        )
        return cut

    async def _drain_and_load(self, target: Published, manifest_path: Path | None) -> list[Sampled]:
        """Let running branches end for a while, then load; return the segments that were cut."""
        if self._drain_s and not await self._thread.drain(self._drain_s):
            log.info(
                "policy step %d waited %.1f s for running branches; the rest is cut",
                target.policy.step,
                self._drain_s,
            )
        try:
            return await self._thread.load(target.policy, manifest_path, target.bytes)
        except BanyanError:
            await self._thread.admit()
            raise

    def _loaded_step(self) -> Iterator[tuple[float, Mapping[str, str]]]:
        if self.loaded is not None:
            yield self.loaded.step, {}

    async def _count_unproven(self) -> None:
        unproven = (await self._thread.stats()).unproven
        telemetry.count("banyan.weights.unproven", unproven - self._unproven)
        self._unproven = unproven
