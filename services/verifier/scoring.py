"""Decides where a scorer runs, and asks it: our own pure code here, everything else in a child process."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import GroupScorer, Repair, Scored, Scorer, Unscorable
from banyan.v1 import tree_pb2
from services.chassis.process import telemetry
from services.verifier.filter import UNCONFINED, UNCONFINED_GROUPS
from services.verifier.sandbox.outcomes import REASON_CHARACTERS, plain, sound
from services.verifier.sandbox.pool import Pool, Verdict
from services.verifier.sandbox.worker import ScorerSpec

R = TypeVar("R")
_SCORERS = 256  # of our own that are kept, by settings
_SHORT = 65_536  # characters that are scored in the event loop: about a millisecond


class Scoring:
    """Scores completions. Never raises on what a scorer or a completion does; that is a verdict."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._made: dict[bytes, Any] = {}

    async def score(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], *, run_id: str = ""
    ) -> Verdict:
        """The scorer's verdict; UNSCORABLE(EXCEPTION) where there is none. run_id: whose it is, "" for no run's."""
        began = time.monotonic()
        try:
            verdict = await self._score(spec, completion, row, run_id)
        except InvalidInput as error:
            verdict = Verdict("", sound(Unscorable(f"EXCEPTION: {error}")))
        _count(spec, verdict)
        telemetry.observe(
            "banyan.score.duration", time.monotonic() - began, banyan_scorer=spec.name
        )
        return verdict

    async def _score(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], run_id: str
    ) -> Verdict:
        if spec.name in UNCONFINED_GROUPS:
            raise InvalidInput(
                f"scorer {spec.name!r} scores whole groups; it has nothing to say of one completion"
            )
        if spec.name not in UNCONFINED:
            return await self._pool.score(spec, completion, row, run_id=run_id)
        scorer: Scorer = self._built(spec)
        outcome = await _aside(len(completion), lambda: scorer.score(completion, row))
        return Verdict(scorer.version, sound(outcome, spec.name))

    async def score_group(
        self,
        spec: ScorerSpec,
        completions: Sequence[str],
        row: Mapping[str, Any],
        *,
        run_id: str = "",
    ) -> list[Verdict]:
        """A verdict on each completion of a group, scored together. run_id: whose they are, "" for no run's."""
        began = time.monotonic()
        try:
            verdicts = await self._score_group(spec, completions, row, run_id)
        except InvalidInput as error:
            verdicts = [Verdict("", sound(Unscorable(f"EXCEPTION: {error}")))] * len(completions)
        for verdict in verdicts:
            _count(spec, verdict)
        telemetry.observe(
            "banyan.score.duration", time.monotonic() - began, banyan_scorer=spec.name
        )
        return verdicts

    async def _score_group(
        self, spec: ScorerSpec, completions: Sequence[str], row: Mapping[str, Any], run_id: str
    ) -> list[Verdict]:
        if spec.name not in UNCONFINED_GROUPS:
            return await self._pool.score_group(spec, completions, row, run_id=run_id)
        scorer: GroupScorer = self._built(spec)
        outcomes = await _aside(
            sum(map(len, completions)), lambda: scorer.score_group(completions, row)
        )
        return [Verdict(scorer.version, sound(outcome, spec.name)) for outcome in outcomes]

    def _built(self, spec: ScorerSpec) -> Any:
        """Our own scorer with these settings, made once. Raises InvalidInput, also where another plugin took its name."""
        if spec.key not in self._made:
            made = registry.build("filter", spec.name, spec.settings)
            if type(made) is not registry.find(
                "filter", {**UNCONFINED, **UNCONFINED_GROUPS}[spec.name]
            ):
                raise InvalidInput(
                    f"scorer {spec.name!r} is {type(made).__module__}, not Banyan's own; register another name"
                )
            if len(self._made) >= _SCORERS:
                self._made.pop(next(iter(self._made)))
            self._made[spec.key] = made
        return self._made[spec.key]

    async def close(self) -> None:
        """Ends all children."""
        await self._pool.close()


async def _aside(characters: int, score: Callable[[], R]) -> R:
    """What a scorer of ours says; of long texts in a thread, so that nothing else waits for it."""
    return score() if characters <= _SHORT else await asyncio.to_thread(score)


def _count(spec: ScorerSpec, verdict: Verdict) -> None:
    state = "scored" if isinstance(verdict.outcome, Scored) else "unscorable"
    telemetry.count("banyan.scores", banyan_scorer=spec.name, banyan_reason=state)


def to_wire(outcome: Scored | Unscorable) -> tree_pb2.Score:
    """Message of an outcome."""
    if isinstance(outcome, Scored):
        state = tree_pb2.SCORE_STATE_SCORED
        return tree_pb2.Score(
            state=state,
            value=outcome.value,
            parts=dict(outcome.parts),
            repair=_repair(outcome.repair),
        )
    return tree_pb2.Score(
        state=tree_pb2.SCORE_STATE_UNSCORABLE, reason=plain(outcome.reason, REASON_CHARACTERS)
    )


def _repair(repair: Repair | None) -> tree_pb2.Repair | None:
    if repair is None:
        return None
    return tree_pb2.Repair(keep=repair.keep, text=repair.text, step=repair.step, steps=repair.steps)
