"""From the store's answers to the facts that `decide` takes."""

from banyan.v1 import runstore_service_pb2 as runs
from services.gateway.runs.decide import RunFacts
from services.gateway.runs.evaluation import Measured
from services.gateway.runs.staleness_gate import GroupCounts


def standing_of(progress: runs.ReadProgressResponse) -> GroupCounts | None:
    """Where training stands; None before the base policy is published."""
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
    unheard: int = 0,
) -> RunFacts:
    """All that is known of a run."""
    return RunFacts(
        state=answer.run.state,
        standing=standing_of(progress),
        evals={e.label: Measured(e.groups, e.done, e.scored) for e in progress.evals},
        given_up=tuple(_in_words(report) for report in answer.given_up),
        live_minutes=answer.live_ms / 60_000,
        unheard=unheard,
        held_out=held_out,
        hopeless=hopeless,
        fruitless=fruitless,
    )


def _in_words(report: runs.ReportProcessRequest) -> str:
    how = (
        f"signal {-report.exit_status}"
        if report.exit_status < 0
        else f"exit status {report.exit_status}"
    )
    detail = report.detail.strip().splitlines()
    return f"{report.service} {report.replica} ended too often, last with {how}" + (
        f": {detail[-1]}" if detail else ""
    )
