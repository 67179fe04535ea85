"""Runs as rows: the store only compares and sets, the gateway decides about transitions."""

from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, insert, or_, select, update

from banyan.errors import InvalidInput, NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.ingest.transaction import apply as apply_events
from services.treestore.lifecycle import transitions
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.storage.store_metadata import read_int, rise
from services.treestore.storage.tokens import tokenizers
from services.treestore.unit_of_work.load import digests_of, load_whole
from services.treestore.unit_of_work.parked_events import run_key
from services.treestore.unit_of_work.rows import GROWING, OVER, SCORING
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

_DIGEST_BYTES = 32
_FOR_GOOD = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_CANCELLED)  # one that FAILED may be resumed
_MAX_NAMED = 3  # runs in a message
# Made once: several services ask after each event.
_RUN = select(schema.runs).where(schema.runs.c.run_id == bindparam("run"))
_GIVEN_UP = select(schema.processes.c.report).where(
    schema.processes.c.run_id.in_((bindparam("run"), "")),
    schema.processes.c.event == rs.PROCESS_EVENT_GIVEN_UP,
)


def take_gateway_epoch(connection: Connection) -> int:
    """Return the next gateway epoch; writes of older gateways are refused from now on."""
    return rise(connection, "gateway_epoch")


def check_gateway(connection: Connection, epoch: int) -> None:
    """Raise Refused for all but the newest gateway."""
    newest = read_int(connection, "gateway_epoch")
    if epoch != newest:
        raise Refused(
            f"gateway epoch {epoch} is not in force, {newest} is; this gateway must stop",
            Reason.STALE_EPOCH,
        )


def run_row(connection: Connection, run_id: str) -> Row[Any]:
    """Return a run's row by id or unique prefix. Raises NotFound."""
    table = schema.runs
    row = connection.execute(_RUN, {"run": run_id}).first()
    if row is not None:
        return row
    matching = (
        table.c.run_id.startswith(run_id, autoescape=True) if run_id else table.c.run_id == ""
    )
    rows = connection.execute(select(table).where(matching).limit(_MAX_NAMED + 1)).all()
    if not rows:
        raise NotFound(f"there is no run {run_id!r}; `banyan runs ls` lists those there are")
    if len(rows) > 1:
        names = ", ".join(row.run_id for row in rows[:_MAX_NAMED])
        others = " and others" if len(rows) > _MAX_NAMED else ""
        raise NotFound(f"run {run_id!r} is ambiguous: {names}{others}; give more of the id")
    return rows[0]


def put(
    connection: Connection, request: rs.PutRunRequest, now_ms: int, settings: Settings
) -> rs.Run:
    """Store a run, and judge the trees that came before it; the same request again returns the
    stored run.

    Raises Refused for an old gateway or a taken id, and InvalidInput for an unusable run.
    """
    check_gateway(connection, request.gateway_epoch)
    table, run = schema.runs, request.run
    repeated = select(table).where(table.c.request_id == request.request_id)
    stored = connection.execute(repeated).first()
    if stored is not None:
        return to_wire(stored)
    _check(connection, request)
    connection.execute(
        insert(table).values(
            run_id=run.run_id,
            request_id=request.request_id,
            recipe_json=run.recipe_json,
            state=int(run.state) or int(rs.RUN_STATE_STARTING),
            cause=run.cause,
            resume_state=int(run.resume_state),
            split_digest=run.split_digest,
            held_out=b"".join(run.held_out),
            folder=run.folder,
            vocabulary=run.vocabulary,
            longest_path=run.longest_path,
            tokenizer=tokenizers.put(connection, request.tokenizer),
            created_ms=now_ms,
        )
    )
    work = UnitOfWork(now_ms, settings)
    apply_events(connection, work, [], [run_key(run.run_id)])
    flush(connection, work)
    return to_wire(run_row(connection, run.run_id))


def _check(connection: Connection, request: rs.PutRunRequest) -> None:
    run_id = request.run.run_id
    if not request.request_id:
        raise InvalidInput("PutRun needs a request_id, which makes it safe to repeat")
    if not run_id or any(c in run_id for c in " .*>/"):
        raise InvalidInput(
            f"run id {run_id!r} must be one token of a NATS subject:"
            " not empty, without space . * > /"
        )
    if any(len(digest) != _DIGEST_BYTES for digest in request.run.held_out):
        raise InvalidInput(f"run {run_id}: a held-out digest does not have {_DIGEST_BYTES} bytes")
    if connection.execute(_RUN, {"run": run_id}).first() is not None:
        raise Refused(f"run {run_id} is there already, by another request", Reason.RUN_EXISTS)


def move(
    connection: Connection, request: rs.MoveRunRequest, now_ms: int, settings: Settings
) -> rs.Run:
    """Move a run to another state if it is in `from_state`; one that is over for good drops all its
    open trees.

    Raises NotFound, Refused for an old gateway, another state or a removed run, and InvalidInput
    for no state.
    """
    check_gateway(connection, request.gateway_epoch)
    row = run_row(connection, request.run_id)
    if row.state != request.from_state:
        actual, expected = _state_name(row.state), _state_name(request.from_state)
        raise Refused(
            f"run {row.run_id} is in {actual}, not in {expected}; read it again",
            Reason.WRONG_STATE,
        )
    if row.removed:
        raise Refused(
            f"run {row.run_id} was removed, as far as anything of it is left; it cannot go on",
            "REMOVED",
        )
    if request.to_state == rs.RUN_STATE_UNSPECIFIED:
        raise InvalidInput(f"run {row.run_id} cannot be moved to no state")
    changes = _changes(row, request, now_ms)
    connection.execute(
        update(schema.runs).where(schema.runs.c.run_id == row.run_id).values(**changes)
    )
    if request.to_state in _FOR_GOOD:
        _drop_trees(connection, row.run_id, now_ms, settings)
    if row.state == rs.RUN_STATE_FAILED:
        _revive(connection, row.run_id, now_ms)
    return to_wire(run_row(connection, row.run_id))


def _state_name(state: int) -> str:
    return rs.RunState.Name(rs.RunState.ValueType(state))


def _changes(row: Row[Any], request: rs.MoveRunRequest, now_ms: int) -> dict[str, object]:
    changes: dict[str, object] = {"state": int(request.to_state), "cause": request.cause}
    changes["ended_ms"] = now_ms if request.to_state in OVER else 0
    if row.state == rs.RUN_STATE_PAUSED:
        changes["paused_ms"] = row.paused_ms + now_ms - row.paused_since_ms
        changes["resume_state"] = 0
    if request.to_state in (rs.RUN_STATE_PAUSED, rs.RUN_STATE_FAILED):
        changes["resume_state"] = int(request.from_state)
        changes["paused_since_ms"] = now_ms
    if row.state == rs.RUN_STATE_FAILED:  # back to where it failed; it has not been live since
        changes["resume_state"] = row.resume_state or int(rs.RUN_STATE_STARTING)
        changes["paused_since_ms"] = row.ended_ms
    return changes


def _revive(connection: Connection, run_id: str, now_ms: int) -> None:
    """Make everything due again that ended with the run: its queue was cleared, its processes were
    given up.
    """
    reports = schema.processes.c
    given_up = reports.run_id.in_((run_id, "")) & (reports.event == rs.PROCESS_EVENT_GIVEN_UP)
    connection.execute(delete(schema.processes).where(given_up))
    trees = schema.trees
    growing = (trees.c.run_id == run_id) & (trees.c.state == GROWING)
    connection.execute(update(trees).where(growing).values(growth_due_ms=now_ms, claim_due_ms=0))
    open_trees = (trees.c.run_id == run_id) & trees.c.state.in_((GROWING, SCORING))
    connection.execute(update(trees).where(open_trees).values(remind_due_ms=now_ms))


def _drop_trees(connection: Connection, run_id: str, now_ms: int, settings: Settings) -> None:
    trees = schema.trees
    work = UnitOfWork(now_ms, settings)
    open_trees = select(trees.c.tree_id).where(
        trees.c.run_id == run_id, trees.c.state.in_((GROWING, SCORING))
    )
    load_whole(connection, work, list(connection.scalars(open_trees)))
    for tree in list(work.trees.values()):
        transitions.drop_open(work, tree, Reason.RUN_OVER)
    flush(connection, work)


def read(connection: Connection, run_id: str, now_ms: int) -> rs.ReadRunResponse:
    """Return a run, its processes that were given up, and the time for which it has been live."""
    row = run_row(connection, run_id)
    given_up = connection.scalars(_GIVEN_UP, {"run": row.run_id})
    reports = [rs.ReportProcessRequest.FromString(report) for report in given_up]
    return rs.ReadRunResponse(run=to_wire(row), given_up=reports, live_ms=_live_ms(row, now_ms))


def read_all(
    connection: Connection, request: rs.ReadRunsRequest, now_ms: int
) -> rs.ReadRunsResponse:
    """Return runs, newest first."""
    table = schema.runs
    query = select(table).order_by(table.c.created_ms.desc(), table.c.run_id)
    if request.live_only:
        query = query.where(table.c.state.not_in(OVER))
    if request.after:
        created, last = table.c.created_ms, request.after_unix_ms
        query = query.where(
            or_(created < last, and_(created == last, table.c.run_id > request.after))
        )
    if request.limit:
        query = query.limit(request.limit)
    rows = connection.execute(query).all()
    return rs.ReadRunsResponse(
        runs=[to_wire(row) for row in rows], live_ms=[_live_ms(row, now_ms) for row in rows]
    )


def _live_ms(row: Row[Any], now_ms: int) -> int:
    """Return the time that a run has been live."""
    until = row.paused_since_ms if row.state == rs.RUN_STATE_PAUSED else row.ended_ms or now_ms
    return max(0, int(until - row.created_ms - row.paused_ms))


def tokenizer(connection: Connection, run_id: str) -> bytes:
    """Return the tokenizer.json of a run's model; empty without one. Raises NotFound."""
    digest = run_row(connection, run_id).tokenizer
    return tokenizers.read(connection, digest) if digest else b""


def is_over(connection: Connection, run_id: str) -> bool:
    """Return True if a run is over; an unknown one is not."""
    state = select(schema.runs.c.state).where(schema.runs.c.run_id == run_id)
    return connection.scalar(state) in OVER


def to_wire(row: Row[Any]) -> rs.Run:
    """Return the message of a run's row."""
    return rs.Run(
        run_id=row.run_id,
        recipe_json=row.recipe_json,
        state=row.state,
        cause=row.cause,
        resume_state=row.resume_state,
        split_digest=row.split_digest,
        held_out=digests_of(row.held_out),
        created_unix_ms=row.created_ms,
        ended_unix_ms=row.ended_ms,
        step=max(0, row.step),
        folder=row.folder,
        vocabulary=row.vocabulary,
        longest_path=row.longest_path,
        joined=row.joined,
        tokenizer_digest=row.tokenizer or b"",
    )
