"""Warm children by scorer: a bounded number each, for a bounded number of scorers.

The least recently used scorer is evicted. Runs share the children, so that the slow scores of one
do not delay those of another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.chassis.process import telemetry
from services.verifier.sandbox import ends
from services.verifier.sandbox.allowed import grants
from services.verifier.sandbox.closing import Closing
from services.verifier.sandbox.fair_slots import FairSlots
from services.verifier.sandbox.lane import Begin, Lane, Verdict
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.worker import ScorerSpec


class Pool:
    """The children of all scorers of a verifier.

    width: children of a scorer whose recipe names no number. lanes: scorers that keep children.
    hurried: somebody waits. The first attempt that is at its deadline decides, busy or not; it
    gives no score, with the deadline as its reason.

    Scores on request count as a run of their own, named "".
    """

    def __init__(
        self, limits: Limits, *, width: int = 2, lanes: int = 8, hurried: bool = False
    ) -> None:
        limits, self._hurried = replace(limits, rounds=1) if hurried else limits, hurried
        self._limits, self._width, self._max_lanes = limits, width, lanes
        self._lanes: dict[bytes, Lane] = {}  # least recently used first
        self._turns = FairSlots(1)  # of scores whose processes the kernel would count together
        self._closing = Closing()  # lanes that are no longer kept

    async def score(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], *, run_id: str = ""
    ) -> Verdict:
        """Return a verdict on a completion. Raise InvalidInput if the scorer cannot be loaded."""
        return (await self.verdicts(spec, {"completion": completion, "row": row}, run_id))[0]

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
        return await self.verdicts(spec, {"completions": completions, "row": row}, run_id)

    async def ask(
        self,
        spec: ScorerSpec,
        request: Mapping[str, Any],
        *,
        run_id: str = "",
        begin: Begin | None = None,
    ) -> dict[str, Any] | ends.End:
        """Return a child's own answer to a request, unchecked, or the end that decided.

        begin: called when a child is ready, for more of the request; the first end decides then,
            because what was begun must not be repeated.

        Raise InvalidInput if the child's code cannot be loaded.
        """
        lane = self._lane(spec)
        with lane.hold():
            await self._evict()
            return await lane.ask(request, run_id, begin=begin)

    async def version(self, spec: ScorerSpec) -> str:
        """Return a scorer's version, by a child that its first score takes; raise likewise."""
        lane = self._lane(spec)
        with lane.hold():
            await self._evict()
            return await lane.version()

    async def verdicts(
        self, spec: ScorerSpec, request: Mapping[str, Any], run_id: str
    ) -> list[Verdict]:
        """Return the verdicts that a request asks for (see `filter.call`).

        Raise InvalidInput if the scorer cannot be loaded.
        """
        count = len(request.get("completions", ("one",)))
        request = {**request, "row": dict(request["row"])}
        lane = self._lane(spec)
        with lane.hold():  # no other scorer evicts it while this one waits
            await self._evict()
            with telemetry.span(
                "verifier.sandbox", telemetry.current().traceparent, banyan_program=spec.name
            ):
                return await lane.score(request, run_id, count)

    async def warm(self, spec: ScorerSpec, row: Mapping[str, Any]) -> None:
        """Start a child, so that the next score does not wait for imports.

        Raise InvalidInput if it cannot import the scorer, or that cannot be called with the row.
        """
        with self._lane(spec).hold():
            await self._lane(spec).warm(row)

    def _lane(self, spec: ScorerSpec) -> Lane:
        """Return the lane of a scorer, the most recently used one from now on."""
        lane = self._lanes.pop(spec.key, None)
        if lane is None:
            width = spec.concurrency or self._width
            limits = limits_of(spec, self._limits)
            lane = Lane(spec, limits, width, self._turns, hurried=self._hurried)
        self._lanes[spec.key] = lane
        return lane

    async def _evict(self) -> None:
        """Close idle lanes above the limit in the background: no score waits for a stopped child.

        As many closing lanes as kept ones are the bound; beyond it a score waits for one of them.
        """
        while len(self._lanes) > self._max_lanes:
            idle = [key for key, lane in self._lanes.items() if not lane.busy]
            if not idle:
                return  # all are at work; the next call tries again
            self._closing.end(self._lanes.pop(idle[0]))
            if len(self._closing) > self._max_lanes:
                await self._closing.one()

    async def close(self) -> None:
        """End all children."""
        while self._lanes:
            self._closing.end(self._lanes.popitem()[1])
        await self._closing.all()


def limits_of(spec: ScorerSpec, limits: Limits) -> Limits:
    """Return the limits of a scorer, its own where its recipe names some.

    A user's function may start processes; it and an environment may use the network if the recipe
    asks for it. A named scorer may do neither. Raise InvalidInput if the operator forbids it.
    """
    limits = replace(
        limits,
        deadline_s=spec.deadline_s or limits.deadline_s,
        memory_mb=spec.memory_mb or limits.memory_mb,
    )
    own = ":" in spec.name
    if not own and not spec.environment:
        return replace(limits, processes=0, network=False)
    grants.check_network(spec.label, asked=spec.network, allowed=limits.network)
    return replace(
        limits, network=spec.network, processes=limits.processes if own or spec.processes else 0
    )
