"""The store's answers as the facts that `decide` takes."""

from banyan.v1 import runstore_service_pb2 as runs
from services.gateway.runs.decide import RunFacts
from services.gateway.runs.evaluation import Measured
from services.gateway.runs.staleness_gate import GroupCounts


def group_counts(progress: runs.ReadProgressResponse) -> GroupCounts | None:
    """Return the counts of training groups; None before the base policy is published."""
    if not progress.HasField("step"):
        return None
    groups = progress.groups
    return GroupCounts(
        step=progress.step,
        batches=int(progress.batches),
        open=groups.open,
        closed=groups.closed,
        dropped=groups.dropped,
        opened=groups.opened,
        consumed=groups.consumed,
        scored=int(progress.samples.scored),
        leaves=int(progress.samples.leaves),
    )


def facts_of(
    answer: runs.ReadRunResponse,
    progress: runs.ReadProgressResponse,
    held_out: int,
    hopeless: str = "",
    fruitless: str = "",
    unstored: int = 0,
) -> RunFacts:
    """Return all known facts of a run."""
    return RunFacts(
        state=answer.run.state,
        counts=group_counts(progress),
        evals={e.label: Measured(e.groups, e.done, e.scored) for e in progress.evals},
        given_up=tuple(_in_words(report) for report in answer.given_up),
        live_minutes=answer.live_ms / 60_000,
        unstored=unstored,
        held_out=held_out,
        hopeless=hopeless,
        fruitless=fruitless,
    )


def _in_words(report: runs.ReportProcessRequest) -> str:
    status = report.exit_status
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    words = f"{report.service} {report.replica} ended too often, last with {how}"
    detail = report.detail.strip().splitlines()
    return f"{words}: {detail[-1]}" if detail else words
