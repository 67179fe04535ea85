"""The handler of a leaf: score it with every scorer that owes a score, publish each score."""

import asyncio
import time
from collections.abc import Mapping

from banyan.errors import InvalidInput
from banyan.plugins import Scored
from services.chassis.process import telemetry
from services.verifier.breath import Breath
from services.verifier.ports import Publisher, Store, Transcript
from services.verifier.sandbox.lane import Verdict
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.score_events import leaf_scored, message_id
from services.verifier.scoring import Scoring, exception_verdict
from services.verifier.store import row_of

_CHARACTERS = 1 << 16  # that take about a millisecond to digest, to write, and to send


class LeafHandler:
    """Scores leaves. TemporaryError if store or broker are away; the leaf is not done then."""

    def __init__(
        self, store: Store, publisher: Publisher, scoring: Scoring, verifier_id: str
    ) -> None:
        self._store, self._publisher, self._scoring = store, publisher, scoring
        self._verifier_id = verifier_id
        self._breath = Breath()

    async def score(self, transcript: Transcript) -> None:
        """Score a leaf; return once the broker has acknowledged every score of it."""
        try:
            specs = await self._store.scorers(transcript.run_id)
        except InvalidInput as error:
            verdict = exception_verdict(error)
            await self._breath.take()
            await asyncio.gather(
                *(self._publish(transcript, name, verdict) for name in transcript.scorers)
            )
            return
        # Behind the read, for which all leaves of a new run wait together.
        await self._breath.take(1 + len(transcript.completion) // _CHARACTERS)
        attempts = [self._score_with(transcript, name, specs) for name in transcript.scorers]
        if len(attempts) == 1:  # without a task of its own, which adds up over a batch of leaves
            await attempts[0]
        else:
            await asyncio.gather(*attempts)

    async def _score_with(
        self, transcript: Transcript, name: str, specs: Mapping[str, ScorerSpec]
    ) -> None:
        key = transcript.key
        attributes = {
            "banyan_run": transcript.run_id,
            "banyan_tree": key.tree_id.hex(),
            "banyan_leaf": f"{key.leaf.segment.hex()}:{key.leaf.end}",
            "banyan_scorer": name,
            "gen_ai.evaluation.name": name,
        }
        with telemetry.span("verifier.score", transcript.traceparent, **attributes) as span:
            began = time.monotonic()
            verdict = await self._verdict(transcript, specs.get(name) or ScorerSpec(name, {}))
            if isinstance(verdict.outcome, Scored):
                value = verdict.outcome.value
                span.set(banyan_score=value, **{"gen_ai.evaluation.score.value": value})
            else:
                span.set(banyan_reason=telemetry.kind_of(verdict.outcome.reason))
                span.fail(telemetry.kind_of(verdict.outcome.reason))
            duration_ms = 1000 * (time.monotonic() - began)
            await self._publish(transcript, name, verdict, duration_ms, span.traceparent)

    async def _verdict(self, transcript: Transcript, spec: ScorerSpec) -> Verdict:
        try:
            row = row_of(transcript)
        except InvalidInput as error:
            return exception_verdict(error)
        return await self._scoring.score(
            spec, transcript.completion, row, run_id=transcript.run_id, turns=transcript.turns
        )

    async def _publish(
        self,
        transcript: Transcript,
        name: str,
        verdict: Verdict,
        duration_ms: float = 0.0,
        traceparent: str = "",
    ) -> None:
        event = leaf_scored(
            transcript, name, verdict, verifier_id=self._verifier_id, duration_ms=duration_ms
        )
        await self._publisher.publish(
            event, message_id(event), traceparent or transcript.traceparent
        )
