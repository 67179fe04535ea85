"""An engine that always has work, and a new policy amid it: what the change took and cost."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from banyan.policy import PolicyVersion
from banyan.segment import Finish, IntTokens, Sampling
from services.rollout.engines.port import Request, Sampled
from services.rollout.engines.thread import EngineThread
from services.rollout.growth.policy_selection import Published
from services.rollout.ports import Source
from services.rollout.timeouts import background
from services.rollout.weights.refresh import Refresher

BRANCHES, PROMPT, SEGMENT, LONGEST = 32, 40, 16, 64
STEADY_S = float(os.environ.get("BENCH_STEADY_S", "3"))


@dataclass
class Change:
    """What one change of policy took and cost."""

    first_s: float
    load_s: float
    again: float
    lost: float


@dataclass
class Busy:
    """Keeps an engine at work: a branch that ends is followed by its next segment, or by another."""

    thread: EngineThread
    draws: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    running: dict[object, Request] = field(default_factory=dict)
    first: dict[PolicyVersion, float] = field(default_factory=dict)  # when the first segment of each policy ended

    async def change(self, publish: Callable[[], Awaitable[Published]], weights: Source, drain_s: float) -> Change:
        """A new policy amid steady work."""
        async with background(self._pump()):
            self._ask([self._fresh() for _ in range(BRANCHES - len(self.running))])
            published = await publish()
            await asyncio.sleep(STEADY_S / 2)
            marks = [await self._mark()]
            await asyncio.sleep(STEADY_S)
            marks.append(await self._mark())
            loaded = await self._load(published, weights, drain_s)
            while published.policy not in self.first:
                await asyncio.sleep(0.002)
            await asyncio.sleep(STEADY_S)
            marks.append(await self._mark())
        (t0, sampled0, filled0), (t1, sampled1, filled1), (t2, sampled2, filled2) = marks
        part = (t2 - t1) / (t1 - t0)
        lost = part * (sampled1 - sampled0) - (sampled2 - sampled1)
        again = (filled2 - filled1) - part * (filled1 - filled0)
        return Change(self.first[published.policy] - t1, loaded - t1, again, lost)

    async def _load(self, published: Published, weights: Source, drain_s: float) -> float:
        """Lets a node's refresher take a policy; when it had done so."""

        async def policies() -> list[Published]:
            return [published]

        store: Any = SimpleNamespace(policies=policies)
        refresher = Refresher(store, self.thread, weights, "bench", drain_s)
        await refresher.poll()
        cut = await refresher.refresh([], [])
        assert refresher.loaded == published.policy, "the policy was not loaded; the log says why"
        loaded = time.monotonic()
        self._take(cut)
        return loaded

    async def _mark(self) -> tuple[float, int, int]:
        stats = await self.thread.stats()
        return time.monotonic(), stats.sampled_tokens, stats.prefilled_tokens

    async def _pump(self) -> None:
        while True:
            self._take(await self.thread.batches())

    def _take(self, ended: Sequence[Sampled]) -> None:
        now = time.monotonic()
        for one in ended:
            if one.finish is Finish.BOUNDARY:
                self.first.setdefault(one.policy, now)
        self._ask([self._next(self.running.pop(one.key), one) for one in ended])

    def _ask(self, requests: Sequence[Request]) -> None:
        self.running |= {request.key: request for request in requests}
        if requests:
            self.thread.submit(requests)

    def _next(self, before: Request, one: Sampled) -> Request:
        path_P = np.concatenate((before.prefix_P, one.tokens_T))
        if len(path_P) >= PROMPT + LONGEST or one.finish is Finish.STOP:
            return self._fresh()
        return self._request(path_P, min(SEGMENT, PROMPT + LONGEST - len(path_P)))

    def _fresh(self) -> Request:
        return self._request(
            self.draws.integers(1000, 40_000, PROMPT).astype(np.int32), 1 + int(self.draws.integers(SEGMENT))
        )

    def _request(self, prefix_P: IntTokens, count: int) -> Request:
        key = int(self.draws.integers(2**62))
        return Request(key, prefix_P, key, Sampling(max_new_tokens=count), keep=True)
