"""Scores as events of the log, and the message ids by which the broker recognises repetitions."""

from banyan.digest import blake, packed
from banyan.v1 import events_pb2, tree_pb2
from services.verifier.ports import Transcript
from services.verifier.sandbox.lane import Verdict
from services.verifier.scoring import to_wire


def leaf_scored(
    transcript: Transcript,
    scorer: str,
    verdict: Verdict,
    *,
    verifier_id: str,
    duration_ms: float = 0.0,
) -> events_pb2.LeafScored:
    """Return the event of a verdict on a leaf."""
    scored = tree_pb2.ScoredLeaf(
        leaf=transcript.key.leaf,
        scorer=scorer,
        scorer_version=verdict.version,
        score=to_wire(verdict.outcome),
    )
    return events_pb2.LeafScored(
        run_id=transcript.run_id,
        tree_id=transcript.key.tree_id,
        scored=scored,
        verifier_id=verifier_id,
        duration_ms=duration_ms,
    )


def message_id(event: events_pb2.LeafScored) -> str:
    """Return a digest of leaf, scorer and version: the same score has the same id each time."""
    leaf, scored = event.scored.leaf, event.scored
    place = packed(event.tree_id) + packed(leaf.segment) + leaf.end.to_bytes(4, "little")
    names = packed(scored.scorer.encode()) + packed(scored.scorer_version.encode())
    return "score-" + blake(b"banyan.score.v1", place, names).hex()
