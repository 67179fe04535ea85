"""Batches that ended their learners: after a second learner failed on one it is set aside, so that
the run continues (ADR 051).
"""

from sqlalchemy import Connection, Select, bindparam, select, update

from banyan.errors import NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control.runs import run_row
from services.treestore.storage import schema

_MAX_FAILURES = 2  # learners
_CAUSE_CHARACTERS = 2000  # of an error that are stored
_MAX_LISTED = 100
_BATCHES = schema.batches.c
# Made once: it is a part of every answer about a run's progress.
_SET_ASIDE = (
    select(_BATCHES.ordinal, _BATCHES.set_aside)
    .where(_BATCHES.run_id == bindparam("run"), _BATCHES.set_aside != "")
    .order_by(_BATCHES.ordinal)
    .limit(_MAX_LISTED)
)


def record(connection: Connection, request: ts.NoteFailureRequest) -> ts.NoteFailureResponse:
    """Count a learner that fails on a batch, once.

    Raises NotFound for an unknown batch, and Refused for a learner that is over.
    """
    run = run_row(connection, request.run_id)
    if request.learner_epoch != run.learner_epoch:
        raise Refused(
            f"learner epoch {request.learner_epoch} of run {run.run_id} is over:"
            f" {run.learner_epoch} is in force; stop",
            Reason.STALE_EPOCH,
        )
    same = (_BATCHES.run_id == run.run_id) & (_BATCHES.ordinal == request.ordinal)
    batch = connection.execute(select(_BATCHES.failures, _BATCHES.failed_epoch).where(same)).first()
    if batch is None:
        raise NotFound(f"batch {request.ordinal} of run {run.run_id} was not committed")
    if batch.failed_epoch == request.learner_epoch:  # the same call again
        return ts.NoteFailureResponse(failures=batch.failures)
    failures = batch.failures + 1
    cause = "".join(c if c.isprintable() else "\ufffd" for c in request.cause[:_CAUSE_CHARACTERS])
    changes = {"failures": failures, "failed_epoch": request.learner_epoch, "failed": cause}
    if failures >= _MAX_FAILURES:
        changes["set_aside"] = (
            f"{failures} learners ended while they trained it, the last with {cause}"
        )
    connection.execute(update(schema.batches).where(same).values(**changes))
    return ts.NoteFailureResponse(failures=failures)


def ordinals_set_aside(run_id: str) -> Select[tuple[int]]:
    """Return the query for the batches of a run that are set aside; nothing trains on their trees
    again.
    """
    return select(_BATCHES.ordinal).where(_BATCHES.run_id == run_id, _BATCHES.set_aside != "")


def set_aside(connection: Connection, run_id: str) -> list[rs.SetAside]:
    """Return the batches of a run that are set aside."""
    rows = connection.execute(_SET_ASIDE, {"run": run_id})
    return [rs.SetAside(ordinal=row.ordinal, cause=row.set_aside) for row in rows]
