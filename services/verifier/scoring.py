"""Scoring with any scorer: Banyan's own pure code in this process, everything else in a child.

So are very long texts: a search through one holds the interpreter, and everything here would wait.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeVar

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import GroupScorer, Repair, Scored, Scorer, Unscorable
from banyan.plugins.ask import ASKERS, Asker
from banyan.plugins.filter import (
    EARNINGS,
    EXAMINERS,
    UNCONFINED,
    UNCONFINED_GROUPS,
    EarningsScorer,
    Examiner,
)
from banyan.programs.run import Result, Run
from banyan.v1 import tree_pb2
from banyan.v1.treestore_service_pb2 import Turn
from services.chassis.process import telemetry
from services.verifier.filter.call import call
from services.verifier.filter.turns import plain as plain_turns
from services.verifier.jail.port import Jail
from services.verifier.judging.judging import Judging
from services.verifier.sandbox.allowed.ceilings import Ceilings
from services.verifier.sandbox.fair_slots import FairSlots
from services.verifier.sandbox.lane import Verdict
from services.verifier.sandbox.outcomes import REASON_CHARACTERS, plain, sound
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec

R = TypeVar("R")
_MAX_SCORERS = 256  # scorers of our own that are kept, by settings
_SHORT_TEXT = 16_384  # characters scored on the event loop: a millisecond at most
_LONG_TEXT = 262_144  # characters; of one longer text alone a search may take 30 ms or more


class Scoring:
    """Scores completions. A fault of a scorer or a completion is a verdict, never an exception.

    pool: children that score.
    jail: runs the programs of completions; without one such scorers are refused.
    programs: programs that run at once, shared fairly among runs.
    ceilings: the most that a recipe may ask for a scorer.
    judging: asks the endpoints of judges; by default it lets none ask.
    """

    def __init__(
        self,
        pool: Pool,
        jail: Jail | None = None,
        programs: int = 2,
        ceilings: Ceilings | None = None,
        judging: Judging | None = None,
    ) -> None:
        self._pool, self._jail, self._ceilings = pool, jail, ceilings or Ceilings()
        self._judging = judging or Judging()
        self._programs = FairSlots(programs)
        self._scorers: dict[bytes, Any] = {}
        self._examinations: dict[bytes, FairSlots] = {}  # of scorers whose recipe bounds them
        # One, as more would only take the interpreter from the event loop more often.
        self._thread = ThreadPoolExecutor(1, "scoring")

    async def score(
        self,
        spec: ScorerSpec,
        completion: str,
        row: Mapping[str, Any],
        *,
        run_id: str = "",
        turns: Sequence[Turn] | None = None,
    ) -> Verdict:
        """Return the scorer's verdict; UNSCORABLE(EXCEPTION) if the scorer does not exist.

        run_id: run that the score is for; "" for none.
        turns: answered actions of the path, as stored; None for a completion alone.
        """
        began = time.monotonic()
        try:
            request = {"completion": completion, "row": row, "turns": plain_turns(turns or ())}
            if spec.name in EARNINGS:
                verdict = self._earnings(spec, turns)
            else:
                verdict = await self._score(spec, request, run_id)
        except InvalidInput as error:
            verdict = exception_verdict(error)
        _count(spec, verdict)
        _observe_duration(spec, began, run_id)
        return verdict

    async def _score(self, spec: ScorerSpec, request: Mapping[str, Any], run_id: str) -> Verdict:
        self._ceilings.check(spec)
        if spec.name in UNCONFINED_GROUPS:
            raise InvalidInput(
                f"scorer {spec.name!r} scores whole groups; it cannot score a single completion"
            )
        if spec.name in EXAMINERS:
            async with self._examination(spec, run_id):
                return await self._examine(spec, request["completion"], request["row"], run_id)
        if spec.name in ASKERS:
            asker: Asker = self._own_scorer(spec)
            text, row = request["completion"], request["row"]
            async with self._examination(spec, run_id):
                outcome = await self._judging.score(spec, asker, text, row, run_id)
            return Verdict(asker.version, sound(outcome, spec.name))
        if spec.name not in UNCONFINED:
            return (await self._pool.verdicts(spec, request, run_id))[0]
        scorer: Scorer = self._own_scorer(spec)
        characters = len(request["completion"])
        if characters > _LONG_TEXT:
            return (await self._pool.verdicts(_trusted(spec), request, run_id))[0]
        outcome = await self._call(characters, lambda: call(scorer, request))
        return Verdict(scorer.version, sound(outcome, spec.name))

    def _earnings(self, spec: ScorerSpec, turns: Sequence[Turn] | None) -> Verdict:
        if turns is None:
            raise InvalidInput(
                f"scorer {spec.name!r} adds up what a stored path earned in its environment; a"
                " completion alone earns nothing"
            )
        scorer: EarningsScorer = self._own_scorer(spec)
        rewards = [turn.receipt.observation.reward for turn in turns]
        return Verdict(scorer.version, sound(scorer.score_rewards(rewards), spec.name))

    async def _examine(
        self, spec: ScorerSpec, completion: str, row: Mapping[str, Any], run_id: str
    ) -> Verdict:
        """Return the verdict of a scorer that runs programs."""
        if self._jail is None:
            raise InvalidInput(f"scorer {spec.name!r} runs programs, and there is no jail here")
        examiner: Examiner = self._own_scorer(spec)
        examination = examiner.examine(completion, row)
        run = await self._call(len(completion), lambda: _next(examination, None))
        while isinstance(run, Run):
            async with self._programs.slot(run_id):
                with telemetry.span(
                    "verifier.sandbox", telemetry.current().traceparent, banyan_program=spec.name
                ):
                    result = await self._jail.run(run)
            run = _next(examination, result)
        version = f"{examiner.version} in {self._jail.version}"
        return Verdict(version, sound(run, spec.name))

    async def score_group(
        self,
        spec: ScorerSpec,
        completions: Sequence[str],
        row: Mapping[str, Any],
        *,
        run_id: str = "",
        turns: Sequence[Sequence[Turn]] = (),
        heads: Sequence[float | None] = (),
    ) -> list[Verdict]:
        """Return a verdict on each completion of a group, scored together.

        run_id: run that the scores are for; "" for none.
        turns: answered actions of each path, as stored; empty if no path has any.
        heads: last score of the learned head on each path, as stored; empty if no path has any.
        """
        began = time.monotonic()
        try:
            request = {
                "completions": completions,
                "row": row,
                "turns": [*map(plain_turns, turns)],
                "heads": list(heads),
            }
            verdicts = await self._score_group(spec, request, run_id)
        except InvalidInput as error:
            verdicts = [exception_verdict(error)] * len(completions)
        for verdict in verdicts:
            _count(spec, verdict)
        _observe_duration(spec, began, run_id)
        return verdicts

    async def _score_group(
        self, spec: ScorerSpec, request: Mapping[str, Any], run_id: str
    ) -> list[Verdict]:
        self._ceilings.check(spec)
        if spec.name not in UNCONFINED_GROUPS:
            return await self._pool.verdicts(spec, request, run_id)
        scorer: GroupScorer = self._own_scorer(spec)
        lengths = [*map(len, request["completions"])]
        if max(lengths, default=0) > _LONG_TEXT:
            return await self._pool.verdicts(_trusted(spec), request, run_id)
        outcomes = await self._call(sum(lengths), lambda: call(scorer, request))
        return [Verdict(scorer.version, sound(outcome, spec.name)) for outcome in outcomes]

    async def version(self, spec: ScorerSpec) -> str:
        """Return the version that verdicts of a scorer have; of one that runs programs, once the
        jail was chosen.

        Raise InvalidInput if it cannot be loaded, ChildDied if its child cannot run.
        """
        self._ceilings.check(spec)
        if spec.name in EXAMINERS:
            return f"{self._own_scorer(spec).version} in {self._jail.version if self._jail else ''}"
        if spec.name in {*UNCONFINED, *UNCONFINED_GROUPS, *ASKERS}:
            return str(self._own_scorer(spec).version)
        return await self._pool.version(spec)

    def _examination(self, spec: ScorerSpec, run_id: str) -> AbstractAsyncContextManager[None]:
        """Return a place among the examinations that a recipe allows at once."""
        if spec.concurrency is None:
            return contextlib.nullcontext()
        if spec.key not in self._examinations:
            if len(self._examinations) >= _MAX_SCORERS:
                self._examinations.pop(next(iter(self._examinations)))
            self._examinations[spec.key] = FairSlots(spec.concurrency)
        return self._examinations[spec.key].slot(run_id)

    def _own_scorer(self, spec: ScorerSpec) -> Any:
        """Return Banyan's own scorer with these settings, built once.

        Raise InvalidInput if it cannot be built, or if another plugin has taken its name.
        """
        if spec.key not in self._scorers:
            scorer = registry.build("filter", spec.name, spec.settings)
            listed = {**UNCONFINED, **UNCONFINED_GROUPS, **EXAMINERS, **ASKERS, **EARNINGS}[
                spec.name
            ]
            if type(scorer) is not registry.find("filter", listed):
                raise InvalidInput(
                    f"scorer {spec.name!r} is {type(scorer).__module__}, not Banyan's own;"
                    " register another name"
                )
            if len(self._scorers) >= _MAX_SCORERS:
                self._scorers.pop(next(iter(self._scorers)))
            self._scorers[spec.key] = scorer
        return self._scorers[spec.key]

    async def _call(self, characters: int, score: Callable[[], R]) -> R:
        """Call a scorer of our own, in the thread if the texts are long, so that nothing waits."""
        if characters <= _SHORT_TEXT:
            return score()
        return await asyncio.get_running_loop().run_in_executor(self._thread, score)

    async def close(self) -> None:
        """End all children and questions."""
        self._thread.shutdown(wait=False)
        await self._judging.close()
        await self._pool.close()
        if self._jail is not None:
            await self._jail.close()


def exception_verdict(error: InvalidInput) -> Verdict:
    """Return the verdict on a completion that could not be scored at all."""
    return Verdict("", sound(Unscorable(f"EXCEPTION: {error}")))


def _trusted(spec: ScorerSpec) -> ScorerSpec:
    """Return our own pure code as it runs in a child, also on a machine that confines none."""
    return replace(spec, unconfined=True)


def _next(
    examination: Generator[Run, Result, Scored | Unscorable], result: Result | None
) -> Run | Scored | Unscorable:
    """Return the next run of an examination, or its score."""
    try:
        return examination.send(result)  # type: ignore[arg-type]  # None begins it
    except StopIteration as end:
        outcome: Scored | Unscorable = end.value
        return outcome


def _count(spec: ScorerSpec, verdict: Verdict) -> None:
    state = "scored" if isinstance(verdict.outcome, Scored) else "unscorable"
    telemetry.count("banyan.scores", banyan_scorer=spec.name, banyan_reason=state)


def _observe_duration(spec: ScorerSpec, began: float, run_id: str) -> None:
    of = {"banyan_scorer": spec.name} | ({"banyan_run": run_id} if run_id else {})
    telemetry.observe("banyan.score.duration", time.monotonic() - began, **of)


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
