"""Warm children by scorer: a bounded number each, for a bounded number of scorers.

The least recently used scorer is evicted. Runs share the children, so that the slow scores of one
do not delay those of another.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from banyan.plugins import Scored, Unscorable
from services.verifier.sandbox.fair_slots import FairSlots
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.outcomes import REASON_CHARACTERS, outcomes, plain
from services.verifier.sandbox.worker import ChildDied, ScorerSpec, Worker

log = logging.getLogger(__name__)
_MAX_PRINTED = 2_000  # characters of a scorer's output in a log line
_MAX_CALLS = 10_000  # then a child is replaced, which bounds the leaks of its imports
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a score, and the scorer's version."""

    version: str
    outcome: Scored | Unscorable


class Lane:
    """The children of one scorer."""

    def __init__(self, spec: ScorerSpec, limits: Limits, width: int, turns: FairSlots) -> None:
        self._spec, self._limits, self._turns = spec, limits, turns
        self._slots = FairSlots(width)
        self._held = 0  # by scores that wait or are under way
        self._idle: list[Worker] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self._version = ""

    @property
    def busy(self) -> bool:
        """True while a score waits or is under way."""
        return self._held > 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the lane busy."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def score(self, request: Mapping[str, Any], run_id: str, count: int = 1) -> list[Verdict]:
        """Return `count` verdicts; if the child dies, try once more.

        Raise InvalidInput if the scorer cannot be loaded.
        """
        async with self._slots.slot(run_id):
            return await self._retried(request, run_id, count)

    async def _retried(self, request: Mapping[str, Any], run_id: str, count: int) -> list[Verdict]:
        cause = ""
        for _ in range(_TRIES):
            try:
                return await self._try(request, run_id, count)
            except ChildDied as error:
                cause = str(error)
        reason = plain(f"INFRASTRUCTURE: {cause}; tried {_TRIES} times", REASON_CHARACTERS)
        return [Verdict(self._version, Unscorable(reason, retry=True))] * count

    async def _try(self, request: Mapping[str, Any], run_id: str, count: int) -> list[Verdict]:
        worker = self._idle.pop() if self._idle else await Worker.start(self._spec, self._limits)
        self._version = worker.version
        reusable = False
        needs_turn = self._limits.processes and not worker.apart
        try:
            async with self._turns.slot(run_id) if needs_turn else contextlib.nullcontext():
                answer = await worker.score(request)
            if "printed" in answer:
                # Quoted: it may contain a completion, which must not pass for a line of the log.
                printed = str(answer["printed"])[:_MAX_PRINTED]
                log.info("scorer %s printed %r", self._spec.name, printed)
            reusable = worker.calls < _MAX_CALLS and not worker.spent and not self._closed
            results = outcomes(answer, count, self._limits.deadline_s, self._spec.name)
            return [Verdict(worker.version, outcome) for outcome in results]
        finally:
            if reusable:
                self._idle.append(worker)
            else:
                self._end(worker)

    def _end(self, worker: Worker) -> None:
        """End a child in the background: its remains may take time, and no answer waits for it."""
        task = asyncio.create_task(worker.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End the idle children; busy ones end with their score."""
        self._closed = True
        while self._idle:
            self._end(self._idle.pop())
        while self._ending:
            await asyncio.wait(self._ending)


class Pool:
    """The children of all scorers of a verifier.

    width: children of a scorer. lanes: scorers that keep children.

    Scores on request count as a run of their own, named "".
    """

    def __init__(self, limits: Limits, *, width: int = 2, lanes: int = 8) -> None:
        self._limits, self._width, self._max_lanes = limits, width, lanes
        self._lanes: dict[bytes, Lane] = {}  # least recently used first
        self._turns = FairSlots(1)  # of scores whose processes the kernel would count together
        self._closing: set[asyncio.Task[None]] = set()  # lanes that are no longer kept

    async def score(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], *, run_id: str = ""
    ) -> Verdict:
        """Return a verdict on a completion. Raise InvalidInput if the scorer cannot be loaded."""
        request = {"completion": completion, "row": dict(row)}
        return (await self._verdicts(spec, request, run_id, 1))[0]

    async def score_group(
        self,
        spec: ScorerSpec,
        completions: Sequence[str],
        row: Mapping[str, Any],
        *,
        run_id: str = "",
    ) -> list[Verdict]:
        """Return a verdict on each completion of a group.

        Raise InvalidInput if the scorer cannot be loaded.
        """
        request = {"completions": list(completions), "row": dict(row)}
        return await self._verdicts(spec, request, run_id, len(completions))

    async def _verdicts(
        self, spec: ScorerSpec, request: Mapping[str, Any], run_id: str, count: int
    ) -> list[Verdict]:
        lane = self._lanes.pop(spec.key, None)
        if lane is None:
            lane = Lane(spec, limits_of(spec, self._limits), self._width, self._turns)
        self._lanes[spec.key] = lane
        with lane.hold():  # no other scorer evicts it while this one waits
            await self._evict()
            return await lane.score(request, run_id, count)

    async def _evict(self) -> None:
        """Close idle lanes above the limit in the background: no score waits for a stopped child.

        As many closing lanes as kept ones are the bound; beyond it a score waits for one of them.
        """
        while len(self._lanes) > self._max_lanes:
            idle = [key for key, lane in self._lanes.items() if not lane.busy]
            if not idle:
                return  # all are at work; the next call tries again
            self._close(self._lanes.pop(idle[0]))
            if len(self._closing) > self._max_lanes:
                await asyncio.wait(self._closing, return_when=asyncio.FIRST_COMPLETED)

    def _close(self, lane: Lane) -> None:
        task = asyncio.create_task(lane.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all children."""
        while self._lanes:
            self._close(self._lanes.popitem()[1])
        while self._closing:
            await asyncio.wait(self._closing)


def limits_of(spec: ScorerSpec, limits: Limits) -> Limits:
    """Return the limits of a scorer.

    A user's function may start processes and, if the operator allows it, use the network; a named
    scorer may do neither.
    """
    if ":" in spec.name:
        return limits
    return replace(limits, processes=0, network=False)
