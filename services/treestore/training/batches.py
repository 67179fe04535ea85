"""Batches: which groups a learner may take, and the one transaction that takes them (PROTOCOL 5)."""

import json
from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, insert, select, update

from banyan.errors import InvalidInput, NotReady, Refused
from banyan.reasons import Reason
from banyan.v1 import events_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.messaging import subjects
from services.treestore.control.runs import run_row
from services.treestore.lifecycle import transitions
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.training.replay import record
from services.treestore.unit_of_work.load import load_groups, load_whole
from services.treestore.unit_of_work.rows import CLOSED, TRAIN, GroupRow, GroupState, TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

_USE = "train"
_DEFAULT_LIMIT = 1000
# Made once: a learner asks after each tree that closes.
_GROUPS, _TREES = schema.groups.c, schema.trees.c
_MINE = (_GROUPS.run_id == bindparam("run")) & (_GROUPS.purpose == TRAIN)
_READY = (
    select(_GROUPS.group_id, _GROUPS.ordinal)
    .where(_MINE, _GROUPS.state == int(GroupState.CLOSED))
    .order_by(_GROUPS.ordinal)
    .limit(bindparam("most"))
)
_HELD = (
    select(_TREES.group_id, _TREES.tree_id)
    .where(
        _TREES.run_id == bindparam("run"),
        _TREES.group_id.in_(bindparam("groups", expanding=True)),
        _TREES.state == CLOSED,
    )
    .order_by(_TREES.group_id, _TREES.tree_index)
)
_OLDEST = select(func.min(_GROUPS.ordinal)).where(_MINE, _GROUPS.state == int(GroupState.OPEN))


def ready(connection: Connection, request: ts.ReadyGroupsRequest) -> ts.ReadyGroupsResponse:
    """Closed training groups that no batch holds, in order of ordinal."""
    _check_use(request.use)
    response = ts.ReadyGroupsResponse()
    found = connection.execute(
        _READY, {"run": request.run_id, "most": request.limit or _DEFAULT_LIMIT}
    ).all()
    members: dict[str, list[bytes]] = {row.group_id: [] for row in found}
    for group_id, tree_id in connection.execute(
        _HELD, {"run": request.run_id, "groups": list(members)}
    ):
        members[group_id].append(tree_id)
    for row in found:
        response.groups.add(
            group_id=row.group_id, ordinal=row.ordinal, tree_ids=members[row.group_id]
        )
    oldest = connection.scalar(_OLDEST, {"run": request.run_id})
    if oldest is not None:
        response.oldest_open = oldest
    return response


def _check_use(use: str) -> None:
    if use != _USE:
        raise NotReady(f"use {use!r} of groups does not exist yet; only {_USE!r} does")


def commit(
    connection: Connection, request: ts.CommitBatchRequest, now_ms: int, settings: Settings
) -> None:
    """Stores a batch, or raises Refused with the rule that forbids it. The same batch again changes nothing."""
    _check_use(request.use)
    run = run_row(connection, request.run_id)
    if request.learner_epoch != run.learner_epoch:
        raise Refused(
            f"learner epoch {request.learner_epoch} of run {run.run_id} is over: {run.learner_epoch} is in force; stop",
            Reason.STALE_EPOCH,
        )
    if _repeats(connection, request):
        return
    if request.ordinal != run.batches:
        raise Refused(
            f"batch {request.ordinal} of run {run.run_id} is not the next, {run.batches} is",
            Reason.WRONG_ORDINAL,
        )
    book = UnitOfWork(now_ms, settings)
    taken, given_up = _load(connection, book, request)
    held = {run.held_out[i : i + 32] for i in range(0, len(run.held_out), 32)}
    _check(connection, book, [*taken, *given_up], held)
    record.check(connection, request, held)
    rows = _take(book, request, taken)
    _give_up(book, request, given_up)
    _store(connection, book, request, rows)


def _repeats(connection: Connection, request: ts.CommitBatchRequest) -> bool:
    table = schema.batches
    stored = connection.execute(
        select(table).where(table.c.run_id == request.run_id, table.c.ordinal == request.ordinal)
    ).first()
    if stored is None:
        return False
    same = json.loads(stored.group_ids) == list(request.group_ids) and json.loads(
        stored.dropped
    ) == _dropped(request)
    same = same and record.of_batch(connection, request.run_id, request.ordinal) == list(
        request.replayed
    )
    if not same or stored.learner_epoch != request.learner_epoch:
        raise Refused(
            f"batch {request.ordinal} of run {request.run_id} holds other groups or is another learner's; read it instead",
            Reason.ORDINAL_TAKEN,
        )
    return True


def _dropped(request: ts.CommitBatchRequest) -> list[list[str]]:
    return [[group.group_id, group.reason] for group in request.dropped]


def _load(
    connection: Connection, book: UnitOfWork, request: ts.CommitBatchRequest
) -> tuple[list[GroupRow], list[GroupRow]]:
    taken, given_up = list(request.group_ids), [group.group_id for group in request.dropped]
    named = [*taken, *given_up]
    if len(set(named)) != len(named):
        raise InvalidInput(
            f"batch {request.ordinal} names a group twice: {sorted(g for g in named if named.count(g) > 1)}"
        )
    load_groups(connection, book, {(request.run_id, group) for group in named})
    missing = [group for group in named if (request.run_id, group) not in book.groups]
    if missing:
        raise InvalidInput(f"run {request.run_id} has no group {missing[0]!r}")
    trees = schema.trees
    load_whole(
        connection,
        book,
        list(
            connection.scalars(
                select(trees.c.tree_id).where(
                    trees.c.run_id == request.run_id, trees.c.group_id.in_(named)
                )
            )
        ),
    )
    return [book.groups[(request.run_id, g)] for g in taken], [
        book.groups[(request.run_id, g)] for g in given_up
    ]


def _check(
    connection: Connection, book: UnitOfWork, groups: Sequence[GroupRow], held_out: set[bytes]
) -> None:
    for group in groups:
        if group.purpose != TRAIN:
            raise Refused(
                f"group {group.group_id} measures the policy; training on it would spoil the measurement",
                Reason.HELD_OUT,
            )
        if group.state in (GroupState.CONSUMED, GroupState.DROPPED):
            raise Refused(
                f"group {group.group_id} is {GroupState(group.state).name} by an earlier batch",
                Reason.ALREADY_USED,
            )
        if group.state != GroupState.CLOSED:
            raise Refused(
                f"group {group.group_id} has open trees; wait until it is closed", Reason.NOT_CLOSED
            )
    trees = schema.trees
    digests = select(trees.c.tree_id, trees.c.row_digest).where(
        trees.c.tree_id.in_(list(book.trees))
    )
    for tree_id, digest in connection.execute(digests):
        if digest in held_out:
            raise Refused(
                f"tree {tree_id.hex()[:12]} is of the held-out row {digest.hex()[:12]}; it must not be trained on",
                Reason.HELD_OUT,
            )


def _of(book: UnitOfWork, group: GroupRow) -> list[TreeRow]:
    mine = [tree for tree in book.of_group(group) if tree.state == CLOSED]
    return sorted(mine, key=lambda tree: tree.tree_index)


def _take(
    book: UnitOfWork, request: ts.CommitBatchRequest, groups: Sequence[GroupRow]
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for group in groups:
        for tree in _of(book, group):
            transitions.consume(book, tree)
            rows.append(
                {
                    "run_id": request.run_id,
                    "tree_id": tree.tree_id,
                    "use": request.use,
                    "ordinal": request.ordinal,
                }
            )
        transitions.consume_group(book, group)
    return rows


def _give_up(book: UnitOfWork, request: ts.CommitBatchRequest, groups: Sequence[GroupRow]) -> None:
    for group, dropped in zip(groups, request.dropped, strict=True):
        for tree in _of(book, group):
            transitions.discard(book, tree, dropped.reason)
        transitions.discard_group(book, group, dropped.reason)


def _store(
    connection: Connection,
    book: UnitOfWork,
    request: ts.CommitBatchRequest,
    rows: list[dict[str, object]],
) -> None:
    connection.execute(
        insert(schema.batches).values(
            run_id=request.run_id,
            ordinal=request.ordinal,
            learner_epoch=request.learner_epoch,
            use=request.use,
            group_ids=json.dumps(list(request.group_ids)),
            dropped=json.dumps(_dropped(request)),
            summary_json=request.summary_json,
            stored_ms=book.now_ms,
        )
    )
    if rows:
        connection.execute(insert(schema.batch_trees), rows)
    record.store(connection, request)
    connection.execute(
        update(schema.runs)
        .where(schema.runs.c.run_id == request.run_id)
        .values(batches=schema.runs.c.batches + 1)
    )
    event = events_pb2.BatchReady(
        run_id=request.run_id,
        ordinal=request.ordinal,
        learner_epoch=request.learner_epoch,
        group_ids=request.group_ids,
    )
    book.say(
        subjects.train(request.run_id, "batch"), f"batch-{request.run_id}-{request.ordinal}", event
    )
    flush(connection, book)


def read(connection: Connection, run_id: str, ordinal: int) -> ts.Batch | None:
    """A committed batch with its trees, in the order of groups and indices."""
    table, used = schema.batches, schema.batch_trees
    row = connection.execute(
        select(table).where(table.c.run_id == run_id, table.c.ordinal == ordinal)
    ).first()
    if row is None:
        return None
    trees = (
        select(used.c.tree_id)
        .where(used.c.run_id == run_id, used.c.ordinal == ordinal)
        .order_by(used.c.n)
    )
    return ts.Batch(
        run_id=run_id,
        ordinal=ordinal,
        learner_epoch=row.learner_epoch,
        use=row.use,
        group_ids=json.loads(row.group_ids),
        tree_ids=list(connection.scalars(trees)),
        summary_json=row.summary_json,
        replayed=record.of_batch(connection, run_id, ordinal),
        set_aside=row.set_aside,
    )
