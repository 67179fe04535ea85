"""Warm children by scorer: a bounded number each, for a bounded number of scorers; the least used scorer gives way.

Runs share them: one run's slow scores do not keep another's waiting.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from banyan.plugins import Scored, Unscorable
from services.verifier.sandbox.fair_slots import FairSlots
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.outcomes import REASON_CHARACTERS, outcomes, plain
from services.verifier.sandbox.worker import ChildDied, ScorerSpec, Worker

log = logging.getLogger(__name__)
_PRINTED = 2_000  # characters of a log line; whoever scores may say more
_CALLS = 10_000  # after these a child is replaced, so that what its imports leak is bounded
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a scorer says, and the scorer's version."""

    version: str
    outcome: Scored | Unscorable


class Lane:
    """The children of one scorer."""

    def __init__(self, spec: ScorerSpec, limits: Limits, width: int, turns: FairSlots) -> None:
        self._spec, self._limits, self._turns = spec, limits, turns
        self._room = FairSlots(width)
        self._waiting = 0
        self._idle: list[Worker] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self._version = ""

    @property
    def busy(self) -> bool:
        """Whether a score is under way or waits."""
        return self._waiting > 0

    async def score(self, request: Mapping[str, Any], run_id: str, count: int = 1) -> list[Verdict]:
        """So many verdicts. A child that dies is tried again once. Raises InvalidInput if the scorer cannot be loaded."""
        self._waiting += 1
        try:
            async with self._room.slot(run_id):
                return await self._tried(request, run_id, count)
        finally:
            self._waiting -= 1

    async def _tried(self, request: Mapping[str, Any], run_id: str, count: int) -> list[Verdict]:
        why = ""
        for _ in range(_TRIES):
            try:
                return await self._try(request, run_id, count)
            except ChildDied as error:
                why = str(error)
        reason = plain(f"INFRASTRUCTURE: {why}; tried {_TRIES} times", REASON_CHARACTERS)
        return [Verdict(self._version, Unscorable(reason, retry=True))] * count

    async def _try(self, request: Mapping[str, Any], run_id: str, count: int) -> list[Verdict]:
        worker = self._idle.pop() if self._idle else await Worker.start(self._spec, self._limits)
        self._version = worker.version
        keep = False
        try:
            async with (
                contextlib.nullcontext()
                if worker.apart or not self._limits.processes
                else self._turns.slot(run_id)
            ):
                answer = await worker.score(request)
            if (
                "printed" in answer
            ):  # quoted: a completion may be in it, which must not pass for a line of the log
                log.info("scorer %s printed %r", self._spec.name, str(answer["printed"])[:_PRINTED])
            keep = worker.calls < _CALLS and not worker.spent and not self._closed
            found = outcomes(answer, count, self._limits.deadline_s, self._spec.name)
            return [Verdict(worker.version, one) for one in found]
        finally:
            if keep:
                self._idle.append(worker)
            else:
                self._end(worker)

    def _end(self, worker: Worker) -> None:
        """End a child aside: what it left behind may take its time, and no answer waits for it."""
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
    """All children of a verifier. Scores that no run asked for count as a run of their own, named ""."""

    def __init__(self, limits: Limits, *, width: int = 2, lanes: int = 8) -> None:
        self._limits, self._width, self._most = limits, width, lanes
        self._lanes: dict[bytes, Lane] = {}
        self._turns = FairSlots(1)  # of scores whose processes the kernel would count together

    async def score(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], *, run_id: str = ""
    ) -> Verdict:
        """A verdict on a completion. Raises InvalidInput if the scorer cannot be loaded."""
        return (
            await (await self._lane(spec)).score(
                {"completion": completion, "row": dict(row)}, run_id
            )
        )[0]

    async def score_group(
        self,
        spec: ScorerSpec,
        completions: Sequence[str],
        row: Mapping[str, Any],
        *,
        run_id: str = "",
    ) -> list[Verdict]:
        """A verdict on each completion of a group. Raises InvalidInput if the scorer cannot be loaded."""
        request = {"completions": list(completions), "row": dict(row)}
        return await (await self._lane(spec)).score(request, run_id, len(completions))

    async def _lane(self, spec: ScorerSpec) -> Lane:
        lane = self._lanes.pop(spec.key, None) or Lane(
            spec, limits_of(spec, self._limits), self._width, self._turns
        )
        self._lanes[spec.key] = lane  # last is latest used
        await self._evict(lane)
        return lane

    async def _evict(self, but: Lane) -> None:
        while len(self._lanes) > self._most:
            key = next(
                (k for k, lane in self._lanes.items() if lane is not but and not lane.busy), None
            )
            if key is None:
                return  # all are at work; the next call looks again
            await self._lanes.pop(key).close()

    async def close(self) -> None:
        """Ends all children."""
        while self._lanes:
            await self._lanes.popitem()[1].close()


def limits_of(spec: ScorerSpec, limits: Limits) -> Limits:
    """A user's function may start processes and, where the operator says so, use the network; a named scorer may not."""
    if ":" in spec.name:
        return limits
    return replace(limits, processes=0, network=False)
