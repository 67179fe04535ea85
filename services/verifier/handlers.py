"""What happens to a leaf: its transcript is scored by every scorer that owes a score, and each score is published."""

import asyncio
import time
from collections.abc import Mapping

from banyan.digest import blake, packed
from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from banyan.v1 import events_pb2, tree_pb2
from services.chassis.process import telemetry
from services.verifier.ports import Publisher, Store, Transcript
from services.verifier.sandbox.outcomes import sound
from services.verifier.sandbox.pool import Verdict
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring, to_wire
from services.verifier.store import row_of


class LeafHandler:
    """Scores leaves. Raises TemporaryError when store or broker cannot be reached; then nothing counts as done."""

    def __init__(
        self, store: Store, publisher: Publisher, scoring: Scoring, verifier_id: str
    ) -> None:
        self._store, self._publisher, self._scoring, self._id = (
            store,
            publisher,
            scoring,
            verifier_id,
        )

    async def score(self, transcript: Transcript) -> None:
        """Returns when every score of the leaf is with the broker."""
        try:
            specs = await self._store.scorers(transcript.run_id)
        except InvalidInput as error:
            await asyncio.gather(
                *(self._publish(transcript, name, exception(error)) for name in transcript.scorers)
            )
            return
        owed = [self._one(transcript, name, specs) for name in transcript.scorers]
        await (
            owed[0] if len(owed) == 1 else asyncio.gather(*owed)
        )  # a task for each of a batch's leaves takes its time

    async def _one(
        self, transcript: Transcript, name: str, specs: Mapping[str, ScorerSpec]
    ) -> None:
        key = transcript.key
        place = f"{key.leaf.segment.hex()}:{key.leaf.end}"
        context = {
            "banyan_run": transcript.run_id,
            "banyan_tree": key.tree_id.hex(),
            "banyan_leaf": place,
        }
        with telemetry.span(
            "verifier.score", transcript.traceparent, banyan_scorer=name, **context
        ) as span:
            began = time.monotonic()
            verdict = await self._verdict(transcript, specs.get(name) or ScorerSpec(name, {}))
            if isinstance(verdict.outcome, Scored):
                span.set(banyan_score=verdict.outcome.value)
            else:
                span.set(banyan_reason=verdict.outcome.reason)
            await self._publish(
                transcript, name, verdict, 1000 * (time.monotonic() - began), span.traceparent
            )

    async def _verdict(self, transcript: Transcript, spec: ScorerSpec) -> Verdict:
        try:
            row = row_of(transcript)
        except InvalidInput as error:
            return exception(error)
        return await self._scoring.score(spec, transcript.completion, row, run_id=transcript.run_id)

    async def _publish(
        self,
        transcript: Transcript,
        name: str,
        verdict: Verdict,
        took_ms: float = 0.0,
        traceparent: str = "",
    ) -> None:
        event = said(transcript, name, verdict, self._id, took_ms)
        await self._publisher.publish(
            event, message_id(event), traceparent or transcript.traceparent
        )


def said(
    transcript: Transcript, name: str, verdict: Verdict, verifier_id: str, milliseconds: float = 0.0
) -> events_pb2.LeafScored:
    """A verdict on a leaf as an event."""
    scored = tree_pb2.ScoredLeaf(
        leaf=transcript.key.leaf,
        scorer=name,
        scorer_version=verdict.version,
        score=to_wire(verdict.outcome),
    )
    return events_pb2.LeafScored(
        run_id=transcript.run_id,
        tree_id=transcript.key.tree_id,
        scored=scored,
        verifier_id=verifier_id,
        duration_ms=milliseconds,
    )


def exception(error: InvalidInput) -> Verdict:
    """What stands for a score that could not be tried."""
    return Verdict("", sound(Unscorable(f"EXCEPTION: {error}")))


def message_id(event: events_pb2.LeafScored) -> str:
    """Digest of leaf, scorer and version: a leaf scored twice is one message to the broker."""
    leaf, scored = event.scored.leaf, event.scored
    place = packed(event.tree_id) + packed(leaf.segment) + leaf.end.to_bytes(4, "little")
    names = packed(scored.scorer.encode()) + packed(scored.scorer_version.encode())
    return "score-" + blake(b"banyan.score.v1", place, names).hex()
