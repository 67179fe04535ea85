"""Scoring with any scorer: Banyan's own pure code in this process, everything else in a child."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import GroupScorer, Repair, Scored, Scorer, Unscorable
from banyan.plugins.filter import EXAMINERS, UNCONFINED, UNCONFINED_GROUPS, Examiner
from banyan.v1 import tree_pb2
from services.chassis.process import telemetry
from services.verifier.jail.port import Jail
from services.verifier.sandbox.fair_slots import FairSlots
from services.verifier.sandbox.outcomes import REASON_CHARACTERS, plain, sound
from services.verifier.sandbox.pool import Pool, Verdict
from services.verifier.sandbox.worker import ScorerSpec

R = TypeVar("R")
_MAX_SCORERS = 256  # scorers of our own that are kept, by settings
_SHORT_TEXT = 65_536  # characters scored on the event loop: about a millisecond


class Scoring:
    """Scores completions. A fault of a scorer or a completion is a verdict, never an exception.

    pool: children that score.
    jail: runs the programs of completions; without one such scorers are refused.
    programs: programs that run at once, shared fairly among runs.
    """

    def __init__(self, pool: Pool, jail: Jail | None = None, programs: int = 2) -> None:
        self._pool, self._jail = pool, jail
        self._programs = FairSlots(programs)
        self._scorers: dict[bytes, Any] = {}

    async def score(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], *, run_id: str = ""
    ) -> Verdict:
        """Return the scorer's verdict; UNSCORABLE(EXCEPTION) if the scorer does not exist.

        run_id: run that the score is for; "" for none.
        """
        began = time.monotonic()
        try:
            verdict = await self._score(spec, completion, row, run_id)
        except InvalidInput as error:
            verdict = exception_verdict(error)
        _count(spec, verdict)
        _observe_duration(spec, began)
        return verdict

    async def _score(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], run_id: str
    ) -> Verdict:
        if spec.name in UNCONFINED_GROUPS:
            raise InvalidInput(
                f"scorer {spec.name!r} scores whole groups; it cannot score a single completion"
            )
        if spec.name in EXAMINERS:
            return await self._examine(spec, completion, row, run_id)
        if spec.name not in UNCONFINED:
            return await self._pool.score(spec, completion, row, run_id=run_id)
        scorer: Scorer = self._own_scorer(spec)
        outcome = await _call(len(completion), lambda: scorer.score(completion, row))
        return Verdict(scorer.version, sound(outcome, spec.name))

    async def _examine(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], run_id: str
    ) -> Verdict:
        """Return the verdict of a scorer that runs programs."""
        if self._jail is None:
            raise InvalidInput(f"scorer {spec.name!r} runs programs, and there is no jail here")
        examiner: Examiner = self._own_scorer(spec)
        examination = examiner.examine(completion, row)
        result = None
        while True:
            try:
                run = examination.send(result)  # type: ignore[arg-type]  # None begins it
            except StopIteration as end:
                version = f"{examiner.version} in {self._jail.version}"
                return Verdict(version, sound(end.value, spec.name))
            async with self._programs.slot(run_id):
                result = await self._jail.run(run)

    async def score_group(
        self,
        spec: ScorerSpec,
        completions: Sequence[str],
        row: Mapping[str, Any],
        *,
        run_id: str = "",
    ) -> list[Verdict]:
        """Return a verdict on each completion of a group, scored together.

        run_id: run that the scores are for; "" for none.
        """
        began = time.monotonic()
        try:
            verdicts = await self._score_group(spec, completions, row, run_id)
        except InvalidInput as error:
            verdicts = [exception_verdict(error)] * len(completions)
        for verdict in verdicts:
            _count(spec, verdict)
        _observe_duration(spec, began)
        return verdicts

    async def _score_group(
        self, spec: ScorerSpec, completions: Sequence[str], row: Mapping[str, Any], run_id: str
    ) -> list[Verdict]:
        if spec.name not in UNCONFINED_GROUPS:
            return await self._pool.score_group(spec, completions, row, run_id=run_id)
        scorer: GroupScorer = self._own_scorer(spec)
        characters = sum(map(len, completions))
        outcomes = await _call(characters, lambda: scorer.score_group(completions, row))
        return [Verdict(scorer.version, sound(outcome, spec.name)) for outcome in outcomes]

    def _own_scorer(self, spec: ScorerSpec) -> Any:
        """Return Banyan's own scorer with these settings, built once.

        Raise InvalidInput if it cannot be built, or if another plugin has taken its name.
        """
        if spec.key not in self._scorers:
            scorer = registry.build("filter", spec.name, spec.settings)
            listed = {**UNCONFINED, **UNCONFINED_GROUPS, **EXAMINERS}[spec.name]
            if type(scorer) is not registry.find("filter", listed):
                raise InvalidInput(
                    f"scorer {spec.name!r} is {type(scorer).__module__}, not Banyan's own;"
                    " register another name"
                )
            if len(self._scorers) >= _MAX_SCORERS:
                self._scorers.pop(next(iter(self._scorers)))
            self._scorers[spec.key] = scorer
        return self._scorers[spec.key]

    async def close(self) -> None:
        """End all children."""
        await self._pool.close()
        if self._jail is not None:
            await self._jail.close()


def exception_verdict(error: InvalidInput) -> Verdict:
    """Return the verdict on a completion that could not be scored at all."""
    return Verdict("", sound(Unscorable(f"EXCEPTION: {error}")))


async def _call(characters: int, score: Callable[[], R]) -> R:
    """Call a scorer of our own, in a thread if the texts are long, so that nothing else waits."""
    return score() if characters <= _SHORT_TEXT else await asyncio.to_thread(score)


def _count(spec: ScorerSpec, verdict: Verdict) -> None:
    state = "scored" if isinstance(verdict.outcome, Scored) else "unscorable"
    telemetry.count("banyan.scores", banyan_scorer=spec.name, banyan_reason=state)


def _observe_duration(spec: ScorerSpec, began: float) -> None:
    duration_s = time.monotonic() - began
    telemetry.observe("banyan.score.duration", duration_s, banyan_scorer=spec.name)


def to_wire(outcome: Scored | Unscorable) -> tree_pb2.Score:
    """Return the message of an outcome."""
    if isinstance(outcome, Scored):
        return tree_pb2.Score(
            state=tree_pb2.SCORE_STATE_SCORED,
            value=outcome.value,
            parts=dict(outcome.parts),
            repair=_repair(outcome.repair),
        )
    reason = plain(outcome.reason, REASON_CHARACTERS)
    return tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason=reason)


def _repair(repair: Repair | None) -> tree_pb2.Repair | None:
    if repair is None:
        return None
    return tree_pb2.Repair(keep=repair.keep, text=repair.text, step=repair.step, steps=repair.steps)
