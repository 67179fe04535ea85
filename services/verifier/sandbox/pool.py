"""Warm children by scorer: a bounded number each, for a bounded number of scorers; the least used scorer gives way."""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from banyan.plugins import Repair, Scored, Unscorable
from banyan.view import MOST_REWARD
from services.verifier.sandbox.limits import Limits
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

    def __init__(self, spec: ScorerSpec, limits: Limits, width: int) -> None:
        self._spec, self._limits = spec, limits
        self._room = asyncio.Semaphore(width)
        self._waiting = 0
        self._idle: list[Worker] = []
        self._closed = False
        self._version = ""

    @property
    def busy(self) -> bool:
        """Whether a score is under way or waits."""
        return self._waiting > 0

    async def score(self, request: Mapping[str, Any], count: int = 1) -> list[Verdict]:
        """So many verdicts. A child that dies is tried again once. Raises InvalidInput if the scorer cannot be loaded."""
        self._waiting += 1
        try:
            async with self._room:
                return await self._tried(request, count)
        finally:
            self._waiting -= 1

    async def _tried(self, request: Mapping[str, Any], count: int) -> list[Verdict]:
        why = ""
        for _ in range(_TRIES):
            try:
                return await self._try(request, count)
            except ChildDied as error:
                why = str(error)
        return [Verdict(self._version, Unscorable(f"INFRASTRUCTURE: {why}; tried {_TRIES} times", retry=True))] * count

    async def _try(self, request: Mapping[str, Any], count: int) -> list[Verdict]:
        worker = self._idle.pop() if self._idle else await Worker.start(self._spec, self._limits)
        self._version = worker.version
        keep = False
        try:
            answer = await worker.score(request)
            if "printed" in answer:  # quoted: a completion may be in it, which must not pass for a line of the log
                log.info("scorer %s printed %r", self._spec.name, str(answer["printed"])[:_PRINTED])
            keep = worker.calls < _CALLS and not self._closed
            return [Verdict(worker.version, one) for one in _outcomes(answer, count, self._limits.deadline_s)]
        finally:
            if keep:
                self._idle.append(worker)
            else:
                await worker.close()

    async def close(self) -> None:
        """Ends the idle children; busy ones end with their score."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()


def _outcomes(answer: Mapping[str, Any], count: int, deadline_s: float) -> list[Scored | Unscorable]:
    """One for each completion; what is said of the whole group holds for all of it."""
    each = answer.get("group")
    if isinstance(each, list) and len(each) == count and all(isinstance(one, dict) for one in each):
        return [_outcome(one, deadline_s) for one in each]
    return [_outcome(answer, deadline_s)] * count


def _outcome(answer: Mapping[str, Any], deadline_s: float) -> Scored | Unscorable:
    if "timeout" in answer:
        return Unscorable(f"TIMEOUT: the scorer gave no answer in {deadline_s:g} s")
    if "unscorable" in answer:
        return Unscorable(str(answer["unscorable"]))
    try:
        value, parts = float(answer["value"]), {str(k): float(v) for k, v in answer["parts"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return Unscorable("NOT_A_NUMBER: the scorer's answer holds no number")
    if not math.isfinite(value) or not all(math.isfinite(v) for v in parts.values()):
        return Unscorable(f"NOT_A_NUMBER: the scorer gave {value}, {parts}")
    if max(map(abs, (value, *parts.values()))) > MOST_REWARD:
        return Unscorable(f"TOO_LARGE: the scorer gave {value}, {parts}; rewards lie within ±{MOST_REWARD:g}")
    try:
        return Scored(value, parts, _repair(answer.get("repair")))
    except (KeyError, TypeError, ValueError) as error:
        return Unscorable(f"EXCEPTION: the scorer's repair is none: {error}")


def _repair(said: Any) -> Repair | None:
    if said is None:
        return None
    return Repair(int(said["keep"]), str(said["text"]), int(said["step"]), int(said["steps"]))


class Pool:
    """All children of a verifier."""

    def __init__(self, limits: Limits, *, width: int = 2, lanes: int = 8) -> None:
        self._limits, self._width, self._most = limits, width, lanes
        self._lanes: dict[bytes, Lane] = {}

    async def score(self, spec: ScorerSpec, completion: str, row: Mapping[str, Any]) -> Verdict:
        """A verdict on a completion. Raises InvalidInput if the scorer cannot be loaded."""
        return (await (await self._lane(spec)).score({"completion": completion, "row": dict(row)}))[0]

    async def score_group(self, spec: ScorerSpec, completions: Sequence[str], row: Mapping[str, Any]) -> list[Verdict]:
        """A verdict on each completion of a group. Raises InvalidInput if the scorer cannot be loaded."""
        request = {"completions": list(completions), "row": dict(row)}
        return await (await self._lane(spec)).score(request, len(completions))

    async def _lane(self, spec: ScorerSpec) -> Lane:
        lane = self._lanes.pop(spec.key, None) or Lane(spec, limits_of(spec, self._limits), self._width)
        self._lanes[spec.key] = lane  # last is latest used
        await self._evict(lane)
        return lane

    async def _evict(self, but: Lane) -> None:
        while len(self._lanes) > self._most:
            key = next((k for k, lane in self._lanes.items() if lane is not but and not lane.busy), None)
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
    return Limits(limits.deadline_s, limits.memory_mb, limits.file_mb, limits.open_files, 0, False, limits.readable)
