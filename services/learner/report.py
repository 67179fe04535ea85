"""What a step says of itself: numbers by name for its policy, metrics, and a span in the trace of each consumed tree."""

import logging
from collections.abc import Sequence

from banyan.v1 import tree_pb2
from services.chassis import telemetry
from services.learner.study import Lesson
from services.learner.torchthread import Timed

log = logging.getLogger(__name__)

_REPORTED = ("loss", "grad_norm", "mismatch_kl", "entropy", "clip_fraction", "foreign_fraction", "learning_rate", "applied")


def numbers(lesson: Lesson, timed: Timed, step: int) -> dict[str, float]:
    """Metrics of the step that made policy `step`."""
    report = timed.report
    if not report.finite:
        log.error("step %d has a loss or a gradient that is not finite; the weights stay as they were", step)
    telemetry.observe("banyan.step.duration", timed.seconds)
    telemetry.observe("banyan.step.reward", lesson.metrics["reward"])
    telemetry.observe("banyan.step.mismatch_kl", report.mismatch_kl)
    said = {name: float(getattr(report, name)) for name in _REPORTED}
    return (
        lesson.metrics | said | dict(report.head) | {"not_finite": float(not report.finite), "train_seconds": timed.seconds}
    )


def note_consumed(trees: Sequence[tree_pb2.Tree], ordinal: int, step: int, batch_trace: str) -> None:
    """A span in each tree's own trace: which batch and step used it, linked to the batch."""
    for tree in trees:
        span = telemetry.start("learner.consume", tree.spec.traceparent, [batch_trace])
        span.set(banyan_run=tree.spec.run_id, banyan_tree=tree.spec.tree_id.hex())
        span.set(banyan_batch=ordinal, banyan_policy_step=step)
        span.end()
