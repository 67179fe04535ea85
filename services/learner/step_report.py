"""The report of a step: numbers by name for its policy, telemetry, and spans of consumed trees."""

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

_REPORTED = (
    "loss",
    "grad_norm",
    "mismatch_kl",
    "entropy",
    "clip_fraction",
    "foreign_fraction",
)
_NO_BIN = ("staleness_mean", "staleness_max")


def numbers(lesson: Lesson, timed: Timed, step: int) -> dict[str, float]:
    """Return the metrics of the step that made policy `step`, and observe its telemetry."""
    report = timed.report
    if not report.finite:
        steps = report.skipped + round(report.measures.get("optimizer_steps", 0.0))
        log.error(
            "step %d: %d of %d optimizer steps have a loss or a gradient that is not finite, and"
            " are skipped",
            step,
            report.skipped,
            steps,
        )
    telemetry.count("banyan.steps.skipped", report.skipped)
    telemetry.observe("banyan.step.duration", timed.seconds)
    if "reward" in lesson.metrics:
        telemetry.observe("banyan.step.reward", lesson.metrics["reward"])
        telemetry.level("banyan.run.reward", lesson.metrics["reward"])
    _observe_training(report)
    _observe_sampling(lesson.metrics)
    measured = _REPORTED if report.measures else ()  # a step without a trained token measured none
    step_numbers = {name: float(getattr(report, name)) for name in measured}
    step_numbers |= {"applied": float(report.applied), "learning_rate": report.learning_rate}
    ending = {
        "not_finite": float(not report.finite),
        "rows": float(len(lesson.sequences)),
        "train_seconds": timed.seconds,
    }
    return lesson.metrics | step_numbers | dict(report.head) | dict(report.measures) | ending


def _observe_training(report: "StepReport") -> None:
    """Observe the mismatch of training and sampling, and the loss's answer to it."""
    measures = report.measures
    if not measures:
        return
    telemetry.observe("banyan.step.mismatch_kl", report.mismatch_kl)
    telemetry.observe("banyan.step.clip_fraction", report.clip_fraction)
    telemetry.observe("banyan.step.entropy", report.entropy)
    telemetry.observe("banyan.step.ess", measures["ess"])
    if "truncated_share" in measures:  # of losses with importance weights
        telemetry.observe("banyan.step.truncated_share", measures["truncated_share"])
    if "rejected_share" in measures:  # of losses that reject
        telemetry.observe("banyan.step.rejected_share", measures["rejected_share"])
    for name, share in measures.items():
        if name.startswith("ratio_"):
            bin_name = name.removeprefix("ratio_")
            telemetry.observe("banyan.step.ratio_share", share, banyan_bin=bin_name)


def _observe_sampling(metrics: Mapping[str, float]) -> None:
    """Observe the variety of a batch, and its age."""
    if "zero_variance_share" in metrics:
        telemetry.observe("banyan.step.zero_variance_share", metrics["zero_variance_share"])
    if "distinct_answers" in metrics:
        telemetry.observe("banyan.step.distinct_answers", metrics["distinct_answers"])
    if "replay_share" in metrics:
        telemetry.observe("banyan.step.replay_share", metrics["replay_share"])
    for name, share in metrics.items():
        if name.startswith("staleness_") and name not in _NO_BIN:
            bin_name = name.removeprefix("staleness_")
            telemetry.observe("banyan.step.staleness_share", share, banyan_bin=bin_name)


def trace_consumed(
    trees: Sequence[tree_pb2.Tree], ordinal: int, step: int, *, batch_trace: str
) -> None:
    """Add a span to each tree's own trace: the batch and the step that used it.

    batch_trace: traceparent of the batch, to which the span is linked
    """
    for tree in trees:
        span = telemetry.start("learner.consume", tree.spec.traceparent, [batch_trace])
        span.set(banyan_run=tree.spec.run_id, banyan_tree=tree.spec.tree_id.hex())
        span.set(banyan_batch=ordinal, banyan_policy_step=step)
        span.end()
