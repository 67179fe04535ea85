"""What a step says of itself: numbers by name for its policy, metrics, and a span in the trace of each consumed tree."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from banyan.v1 import tree_pb2
from services.chassis.process import telemetry
from services.learner.data.prepare import Lesson
from services.learner.training.trainer_thread import Timed

if TYPE_CHECKING:
    from services.learner.training.trainer import StepReport

log = logging.getLogger(__name__)

_REPORTED = ("loss", "grad_norm", "mismatch_kl", "entropy", "clip_fraction", "foreign_fraction")


def numbers(lesson: Lesson, timed: Timed, step: int) -> dict[str, float]:
    """Metrics of the step that made policy `step`."""
    report = timed.report
    if not report.finite:
        steps = report.skipped + round(report.measures.get("optimizer_steps", 0.0))
        told = "step %d: %d of %d optimizer steps have a loss or a gradient that is not finite, and are skipped"
        log.error(told, step, report.skipped, steps)
    telemetry.observe("banyan.step.duration", timed.seconds)
    if "reward" in lesson.metrics:
        telemetry.observe("banyan.step.reward", lesson.metrics["reward"])
    _observe(report)
    _observe_sampling(lesson.metrics)
    measured = _REPORTED if report.measures else ()  # a step without a token to train on measured nothing
    said = {name: float(getattr(report, name)) for name in measured}
    return (
        lesson.metrics
        | said
        | {"applied": float(report.applied), "learning_rate": report.learning_rate}
        | dict(report.head)
        | dict(report.measures)
        | {"not_finite": float(not report.finite), "rows": float(len(lesson.sequences)), "train_seconds": timed.seconds}
    )


def _observe(report: "StepReport") -> None:
    """Of a step that saw tokens: how far training is from sampling, and what the loss did about it."""
    said = report.measures
    if not said:
        return
    telemetry.observe("banyan.step.mismatch_kl", report.mismatch_kl)
    telemetry.observe("banyan.step.clip_fraction", report.clip_fraction)
    telemetry.observe("banyan.step.entropy", report.entropy)
    telemetry.observe("banyan.step.ess", said["ess"])
    telemetry.observe("banyan.step.truncated_share", said.get("truncated_share", 0.0))
    telemetry.observe("banyan.step.rejected_share", said.get("rejected_share", 0.0))
    for name, share in said.items():
        if name.startswith("ratio_"):
            telemetry.observe("banyan.step.ratio_share", share, banyan_bin=name.removeprefix("ratio_"))


def _observe_sampling(said: Mapping[str, float]) -> None:
    """How varied the batch is, and how old."""
    if "zero_variance_share" in said:
        telemetry.observe("banyan.step.zero_variance_share", said["zero_variance_share"])
    if "distinct_answers" in said:
        telemetry.observe("banyan.step.distinct_answers", said["distinct_answers"])
    if "replay_share" in said:
        telemetry.observe("banyan.step.replay_share", said["replay_share"])
    for name, share in said.items():
        if name.startswith("staleness_") and name not in _AGES:
            telemetry.observe("banyan.step.staleness_share", share, banyan_bin=name.removeprefix("staleness_"))


_AGES = ("staleness_mean", "staleness_max")


def note_consumed(trees: Sequence[tree_pb2.Tree], ordinal: int, step: int, batch_trace: str) -> None:
    """A span in each tree's own trace: which batch and step used it, linked to the batch."""
    for tree in trees:
        span = telemetry.start("learner.consume", tree.spec.traceparent, [batch_trace])
        span.set(banyan_run=tree.spec.run_id, banyan_tree=tree.spec.tree_id.hex())
        span.set(banyan_batch=ordinal, banyan_policy_step=step)
        span.end()
