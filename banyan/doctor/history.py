"""Stored facts of a run as the series that a diagnosis reads, and findings as words. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from banyan.doctor.series import Evidence, Measured, Series, series
from banyan.progress.run_status import moment
from banyan.v1 import runstore_service_pb2 as rs


def history(
    steps: Iterable[Mapping[str, Any]], evaluations: Iterable[rs.EvalProgress], last: int
) -> Series:
    """Return the series of a run.

    steps: metrics of the steps as `plain_data.metrics` returns them
    last: newest step
    """
    return series(((s["step"], _finite(s)) for s in steps), held_out(evaluations, last))


def _finite(step: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in step.items() if value is not None}


def held_out(evaluations: Iterable[rs.EvalProgress], last: int) -> list[Measured]:
    """Return the finished greedy evaluations. last: newest step, for that after the run."""
    measured = []
    for message in evaluations:
        step, is_greedy = moment(message.label, last), message.label.endswith("-greedy")
        is_over = message.done >= message.groups and message.scored
        if is_greedy and is_over and step is not None:
            measured.append(Measured(step, message.reward_sum / message.scored, message.scored))
    return measured


def evidence_words(evidence: Evidence) -> str:
    """Return evidence as people read it."""
    was = f", was {evidence.was:.4g}" if evidence.was is not None else ""
    limit = f", limit {evidence.limit:.4g}" if evidence.limit is not None else ""
    steps = f"steps {evidence.first} to {evidence.last}"
    return f"{evidence.metric} {evidence.value:.4g}{was}{limit}, {steps}"


def not_deterministic(deterministic: bool, stats: Mapping[str, int]) -> str:
    """Return a line if a deterministic run met what no seed fixes; empty if not."""
    missing = stats.get("unrepeatable", 0)
    if not (deterministic and missing):
        return ""
    return (
        f"this run is not deterministic: {missing} scores are missing since a time was over, the"
        " system or an environment failed, or one came out otherwise (`banyan lineage` shows the"
        " reasons)"
    )
