"""The trace of the newest step of a state folder."""

from dataclasses import dataclass
from pathlib import Path

from banyan.cli.store import reading
from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs


@dataclass(frozen=True)
class LastStep:
    """The newest optimizer step of a run.

    run_id: its run
    step: its number
    trace_id: its trace; empty if it was made without OTLP
    """

    run_id: str
    step: int
    trace_id: str


def last_step(state: Path) -> LastStep | None:
    """Return the last step of the newest run that has made one; None before there is any."""
    try:
        with reading(state) as client:
            for run in client.runs():
                if run.step > 0:
                    return of_policies(run.run_id, client.policies(run.run_id))
    except InvalidInput:  # no store yet
        return None
    return None


def of_policies(run_id: str, policies: list[rs.StoredPolicy]) -> LastStep:
    """Return the step that made the newest policy. policies: oldest first, at least one."""
    newest = policies[-1].published
    _, trace_id, *_ = (newest.traceparent or "-").split("-")
    return LastStep(run_id, newest.policy.step, trace_id)
