"""Publication of a transaction's outcome: waiters, the outbox and metrics."""

from banyan.v1 import tree_pb2
from services.chassis.process import telemetry
from services.treestore.ingest.outcome import Outcome
from services.treestore.unit_of_work.context import Context


def publish_outcome(context: Context, outcome: Outcome) -> None:
    """Wake waiters and the outbox, and count."""
    context.notifier.notify(outcome.touched)
    context.notifier.notify(outcome.runs)
    if outcome.recorded:
        context.wake_outbox()
    if outcome.segments:
        telemetry.count("banyan.segments.stored", outcome.segments)
    for reason in outcome.refused:
        telemetry.count("banyan.segments.refused", banyan_reason=telemetry.kind_of(reason))
    for scorer, reason in outcome.missing:
        kind = telemetry.kind_of(reason)
        telemetry.count("banyan.scores.missing", banyan_scorer=scorer, banyan_reason=kind)
    for state, reason in outcome.ended:
        if state == tree_pb2.TREE_STATE_DROPPED:
            telemetry.count("banyan.trees.dropped", banyan_reason=telemetry.kind_of(reason))
        else:
            telemetry.count("banyan.trees.closed")
    if outcome.dead:
        telemetry.count("banyan.dead_letters", outcome.dead)
