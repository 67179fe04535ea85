"""Decides where a scorer runs, and asks it: our own pure code here, everything else in a child process."""

import time
from collections.abc import Mapping
from typing import Any

from banyan import registry
from banyan.errors import InvalidInput, NotReady
from banyan.plugins import Scored, Scorer, Unscorable
from banyan.v1 import tree_pb2
from services.chassis import telemetry
from services.verifier.filter import SAFE
from services.verifier.sandbox.pool import Pool, Verdict
from services.verifier.sandbox.worker import ScorerSpec


class Scoring:
    """Scores completions. Never raises on what a scorer or a completion does; that is a verdict."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._built: dict[bytes, Scorer] = {}

    async def score(self, spec: ScorerSpec, completion: str, row: Mapping[str, Any]) -> Verdict:
        """The scorer's verdict; UNSCORABLE(EXCEPTION) where there is no such scorer."""
        began = time.monotonic()
        try:
            verdict = await self._score(spec, completion, row)
        except InvalidInput as error:
            verdict = Verdict("", Unscorable(f"EXCEPTION: {error}"))
        state = "scored" if isinstance(verdict.outcome, Scored) else "unscorable"
        telemetry.count("banyan.scores", banyan_scorer=spec.name, banyan_reason=state)
        telemetry.observe("banyan.score.duration", time.monotonic() - began, banyan_scorer=spec.name)
        return verdict

    async def _score(self, spec: ScorerSpec, completion: str, row: Mapping[str, Any]) -> Verdict:
        if spec.name not in SAFE:
            return await self._pool.score(spec, completion, row)
        scorer = self._built.get(spec.key)
        if scorer is None:
            scorer = self._built[spec.key] = registry.build("filter", spec.name, spec.settings)
        return Verdict(scorer.version, scorer.score(completion, row))

    async def score_group(self, spec: ScorerSpec, completions: list[str], row: Mapping[str, Any]) -> list[Verdict]:
        """All leaves of a tree or task at once, as majority needs them."""
        raise NotReady(f"scorer {spec.name!r} would score a whole group; group scorers do not exist in this version")

    async def close(self) -> None:
        """Ends all children."""
        await self._pool.close()


def to_wire(outcome: Scored | Unscorable) -> tree_pb2.Score:
    """Message of an outcome."""
    if isinstance(outcome, Scored):
        state = tree_pb2.SCORE_STATE_SCORED
        return tree_pb2.Score(state=state, value=outcome.value, parts=dict(outcome.parts))
    return tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason=outcome.reason)
