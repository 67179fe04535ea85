"""Batches: the groups that a learner may take, and the one transaction that takes them.

See docs/protocol.md, Commit before training.
"""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

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
from services.treestore.unit_of_work.load import digests_of, load_members
from services.treestore.unit_of_work.rows import CLOSED, TRAIN, GroupRow, GroupState, TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

USE = "train"
"""Use of the trees that a batch consumes; no other use exists, and replayed trees have
`record.USE`.
"""
_DEFAULT_LIMIT = 1000
# Made once: a learner asks after each tree that closes.
_GROUPS, _TREES = schema.groups.c, schema.trees.c
_TRAINING = (_GROUPS.run_id == bindparam("run")) & (_GROUPS.purpose == TRAIN)
_READY = (
    select(_GROUPS.group_id, _GROUPS.ordinal)
    .where(_TRAINING, _GROUPS.state == int(GroupState.CLOSED))
    .order_by(_GROUPS.ordinal)
    .limit(bindparam("most"))
)
_CLOSED_TREES = (
    select(_TREES.group_id, _TREES.tree_id)
    .where(
        _TREES.run_id == bindparam("run"),
        _TREES.group_id.in_(bindparam("groups", expanding=True)),
        _TREES.state == CLOSED,
    )
    .order_by(_TREES.group_id, _TREES.tree_index)
)
_OLDEST = select(func.min(_GROUPS.ordinal)).where(_TRAINING, _GROUPS.state == int(GroupState.OPEN))


def ready(connection: Connection, request: ts.ReadyGroupsRequest) -> ts.ReadyGroupsResponse:
    """Return the closed training groups that no batch holds, in order of ordinal."""
    _check_use(request.use)
    response = ts.ReadyGroupsResponse()
    limit = request.limit or _DEFAULT_LIMIT
    groups = connection.execute(_READY, {"run": request.run_id, "most": limit}).all()
    members: dict[str, list[bytes]] = {group.group_id: [] for group in groups}
    query = {"run": request.run_id, "groups": list(members)}
    for group_id, tree_id in connection.execute(_CLOSED_TREES, query):
        members[group_id].append(tree_id)
    for group in groups:
        response.groups.add(
            group_id=group.group_id, ordinal=group.ordinal, tree_ids=members[group.group_id]
        )
    oldest = connection.scalar(_OLDEST, {"run": request.run_id})
    if oldest is not None:
        response.oldest_open = oldest
    return response


def _check_use(use: str) -> None:
    if use != USE:
        raise NotReady(f"use {use!r} of groups does not exist yet; only {USE!r} does")


def commit(
    connection: Connection, request: ts.CommitBatchRequest, now_ms: int, settings: Settings
) -> None:
    """Store a batch; a repetition changes nothing.

    Raises InvalidInput, or Refused with the rule that forbids the batch.
    """
    _check_use(request.use)
    if request.dropped:
        raise InvalidInput("CommitBatch.dropped is deprecated; a batch drops no groups")
    run = run_row(connection, request.run_id)
    if request.learner_epoch != run.learner_epoch:
        raise Refused(
            f"learner epoch {request.learner_epoch} of run {run.run_id} is over:"
            f" {run.learner_epoch} is in force; stop",
            Reason.STALE_EPOCH,
        )
    if _is_repeated(connection, request):
        return
    if request.ordinal != run.batches:
        raise Refused(
            f"batch {request.ordinal} of run {run.run_id} is not the next, {run.batches} is",
            Reason.WRONG_ORDINAL,
        )
    work = UnitOfWork(now_ms, settings)
    groups = _load_groups(connection, work, request)
    held_out = set(digests_of(run.held_out))
    _check_groups(groups)
    _check_held_out(connection, work, held_out)
    record.check(connection, request, held_out)
    tree_ids = _consume(work, groups)
    _store(connection, work, request, tree_ids)
    flush(connection, work)


def _is_repeated(connection: Connection, request: ts.CommitBatchRequest) -> bool:
    """Return True if the batch is stored. Raises Refused if another one has its ordinal."""
    stored = _row(connection, request.run_id, request.ordinal)
    if stored is None:
        return False
    replayed = record.of_batch(connection, request.run_id, request.ordinal)
    same = (
        stored.learner_epoch == request.learner_epoch
        and json.loads(stored.group_ids) == list(request.group_ids)
        and replayed == list(request.replayed)
    )
    if not same:
        raise Refused(
            f"batch {request.ordinal} of run {request.run_id} holds other groups or is another"
            " learner's; read it instead",
            Reason.ORDINAL_TAKEN,
        )
    return True


def _row(connection: Connection, run_id: str, ordinal: int) -> Row[Any] | None:
    table = schema.batches
    same = (table.c.run_id == run_id) & (table.c.ordinal == ordinal)
    return connection.execute(select(table).where(same)).first()


def _load_groups(
    connection: Connection, work: UnitOfWork, request: ts.CommitBatchRequest
) -> list[GroupRow]:
    named = list(request.group_ids)
    if len(set(named)) != len(named):
        twice = sorted(group for group in named if named.count(group) > 1)
        raise InvalidInput(f"batch {request.ordinal} names a group twice: {twice}")
    load_members(connection, work, request.run_id, named)
    missing = [group for group in named if (request.run_id, group) not in work.groups]
    if missing:
        raise InvalidInput(f"run {request.run_id} has no group {missing[0]!r}")
    return [work.groups[(request.run_id, group)] for group in named]


def _check_groups(groups: Sequence[GroupRow]) -> None:
    for group in groups:
        if group.purpose != TRAIN:
            raise Refused(
                f"group {group.group_id} measures the policy;"
                " training on it would spoil the measurement",
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


def _check_held_out(connection: Connection, work: UnitOfWork, held_out: set[bytes]) -> None:
    trees = schema.trees.c
    digests = select(trees.tree_id, trees.row_digest).where(trees.tree_id.in_(list(work.trees)))
    for tree_id, digest in connection.execute(digests):
        if digest in held_out:
            raise Refused(
                f"tree {tree_id.hex()[:12]} is of the held-out row {digest.hex()[:12]};"
                " it must not be trained on",
                Reason.HELD_OUT,
            )


def _consume(work: UnitOfWork, groups: Sequence[GroupRow]) -> list[bytes]:
    """Mark groups and their closed trees as consumed, and return the trees in order."""
    consumed: list[bytes] = []
    for group in groups:
        for tree in _closed_trees(work, group):
            transitions.consume(work, tree)
            consumed.append(tree.tree_id)
        transitions.consume_group(work, group)
    return consumed


def _closed_trees(work: UnitOfWork, group: GroupRow) -> list[TreeRow]:
    trees = [tree for tree in work.of_group(group) if tree.state == CLOSED]
    return sorted(trees, key=lambda tree: tree.tree_index)


def _store(
    connection: Connection,
    work: UnitOfWork,
    request: ts.CommitBatchRequest,
    tree_ids: Sequence[bytes],
) -> None:
    connection.execute(
        insert(schema.batches).values(
            run_id=request.run_id,
            ordinal=request.ordinal,
            learner_epoch=request.learner_epoch,
            use=USE,
            group_ids=json.dumps(list(request.group_ids)),
            dropped="[]",
            summary_json=request.summary_json,
            stored_ms=work.now_ms,
        )
    )
    rows = [
        {"run_id": request.run_id, "tree_id": tree_id, "use": USE, "ordinal": request.ordinal}
        for tree_id in tree_ids
    ]
    if rows:
        connection.execute(insert(schema.batch_trees), rows)
    record.store(connection, request)
    runs = schema.runs
    next_batch = update(runs).where(runs.c.run_id == request.run_id)
    connection.execute(next_batch.values(batches=runs.c.batches + 1))
    event = events_pb2.BatchReady(
        run_id=request.run_id,
        ordinal=request.ordinal,
        learner_epoch=request.learner_epoch,
        group_ids=request.group_ids,
    )
    msg_id = f"batch-{request.run_id}-{request.ordinal}"
    work.outgoing.record(subjects.train(request.run_id, "batch"), msg_id, event)


def read(connection: Connection, run_id: str, ordinal: int) -> ts.Batch | None:
    """Return a committed batch with its trees, in the order of groups and indices."""
    row, used = _row(connection, run_id, ordinal), schema.batch_trees
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
