"""Batches that ended their learners: the second that fails on one has it set aside, so that the run goes on (ADR 051)."""

from sqlalchemy import Connection, Select, select, update

from banyan.errors import NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control.runs import run_row
from services.treestore.storage import schema

_MOST = 2  # learners
_CAUSE = 2000  # characters that are kept of an error
_SHOWN = 100
_B = schema.batches.c


def note(connection: Connection, request: ts.NoteFailureRequest) -> ts.NoteFailureResponse:
    """Counts a learner that fails on a batch, once. Raises NotFound for no batch, Refused for a learner that is over."""
    run = run_row(connection, request.run_id)
    if request.learner_epoch != run.learner_epoch:
        said = f"learner epoch {request.learner_epoch} of run {run.run_id} is over: {run.learner_epoch} is in force; stop"
        raise Refused(said, Reason.STALE_EPOCH)
    mine = (_B.run_id == run.run_id) & (_B.ordinal == request.ordinal)
    batch = connection.execute(select(_B.failures, _B.failed_epoch).where(mine)).first()
    if batch is None:
        raise NotFound(f"batch {request.ordinal} of run {run.run_id} was not committed")
    if batch.failed_epoch == request.learner_epoch:  # the same call again
        return ts.NoteFailureResponse(failures=batch.failures)
    failures, cause = (
        batch.failures + 1,
        "".join(c if c.isprintable() else "\ufffd" for c in request.cause[:_CAUSE]),
    )
    changes = {"failures": failures, "failed_epoch": request.learner_epoch, "failed": cause}
    if failures >= _MOST:
        changes["set_aside"] = (
            f"{failures} learners ended while they trained it, the last with {cause}"
        )
    connection.execute(update(schema.batches).where(mine).values(**changes))
    return ts.NoteFailureResponse(failures=failures)


def aside_of(run_id: str) -> Select[tuple[int]]:
    """Ordinals of the batches of a run that are set aside, for a query: nothing trains on their trees again."""
    return select(_B.ordinal).where(_B.run_id == run_id, _B.set_aside != "")


def set_aside(connection: Connection, run_id: str) -> list[rs.SetAside]:
    """Batches of a run that are not trained on."""
    query = (
        select(_B.ordinal, _B.set_aside)
        .where(_B.run_id == run_id, _B.set_aside != "")
        .order_by(_B.ordinal)
    )
    return [
        rs.SetAside(ordinal=row.ordinal, cause=row.set_aside)
        for row in connection.execute(query.limit(_SHOWN))
    ]
