"""Growth budgets that control grants to growing trees, and the facts on which it decides."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from services.treestore.control.runs import check_gateway, run_row
from services.treestore.queries.trees import budget_to_wire, budgets_of, score_to_wire
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks, rows_in
from services.treestore.unit_of_work.rows import GROWING

_TREES, _GROUPS = schema.trees.c, schema.groups.c
_MINE = (_TREES.run_id == bindparam("run_id")) & (
    _TREES.purpose == int(tree_pb2.TREE_PURPOSE_TRAIN)
)
_ORDINALS = (
    select(_GROUPS.ordinal)
    .join(schema.trees, (_TREES.run_id == _GROUPS.run_id) & (_TREES.group_id == _GROUPS.group_id))
    .where(_MINE, _TREES.state == GROWING)
)
_OF_BLOCK = (
    select(_TREES.tree_id, _TREES.tree_index, _TREES.state, _GROUPS.ordinal)
    .join(schema.groups, (_TREES.run_id == _GROUPS.run_id) & (_TREES.group_id == _GROUPS.group_id))
    .where(_MINE, _GROUPS.ordinal >= bindparam("first"), _GROUPS.ordinal < bindparam("stop"))
    .order_by(_GROUPS.ordinal, _TREES.tree_index)
)
_SCORED = (
    select(func.count())
    .select_from(schema.scores)
    .join(schema.trees, _TREES.tree_id == schema.scores.c.tree_id)
)
_LAST_STORED = (
    select(schema.segments.c.tree_id, func.max(schema.segments.c.stored_ms).label("ms"))
    .where(schema.segments.c.tree_id.in_(bindparam("keys", expanding=True)))
    .group_by(schema.segments.c.tree_id)
)


def revision(connection: Connection, run_id: str) -> int:
    """Return a number that changes with the facts of a run: a cheap query for waiters."""
    scores = (
        connection.scalar(_SCORED.where(_MINE, _TREES.state == GROWING), {"run_id": run_id}) or 0
    )
    return 1 + scores + (len(_growing(connection, run_id)) << 32)


def _growing(connection: Connection, run_id: str) -> list[int]:
    return list(connection.scalars(_ORDINALS, {"run_id": run_id}))


def facts(
    connection: Connection, request: rs.ReadRoomsRequest, now_ms: int, began_ms: int = 0
) -> list[rs.RoomFacts]:
    """Return the facts of the trees of all blocks that still grow.

    now_ms: time on the store's clock
    began_ms: start of the store; time before it does not count as waiting
    """
    blocks = sorted({ordinal // request.block for ordinal in _growing(connection, request.run_id)})
    trees: list[Any] = []
    for block in blocks:
        span = {"first": block * request.block, "stop": (block + 1) * request.block}
        trees += connection.execute(_OF_BLOCK, {"run_id": request.run_id, **span}).all()
    return _facts(connection, trees, now_ms, began_ms)


def _facts(
    connection: Connection, trees: Sequence[Any], now_ms: int, began_ms: int
) -> list[rs.RoomFacts]:
    growing = [tree.tree_id for tree in trees if tree.state == GROWING]
    tree_ids = [tree.tree_id for tree in trees]
    budgets = {row.tree_id: row for row in rows_in(connection, schema.rooms, "tree_id", tree_ids)}
    finished = [
        leaf for leaf in rows_in(connection, schema.leaves, "tree_id", growing) if leaf.finished
    ]
    leaves = Counter(leaf.tree_id for leaf in finished)
    places = {(leaf.tree_id, leaf.segment, leaf.end) for leaf in finished}
    last_stored = dict(_last_stored(connection, growing))
    facts_of: dict[bytes, rs.RoomFacts] = {}
    for tree in trees:
        budget = budgets.get(tree.tree_id)
        fact = rs.RoomFacts(
            tree_id=tree.tree_id,
            group_ordinal=tree.ordinal,
            room=budget_to_wire(budget) if budget else None,
        )
        facts_of[tree.tree_id] = fact
        if tree.state == GROWING:
            fact.growing, fact.leaves = True, leaves[tree.tree_id]
            granted_ms = budget.set_ms if budget else 0
            since = max(last_stored.get(tree.tree_id, now_ms), granted_ms, began_ms)
            fact.waited_ms = max(0, now_ms - since)
    for score in rows_in(connection, schema.scores, "tree_id", growing):
        place = (score.tree_id, score.segment, score.end)
        if place in places:  # a place that is no leaf uses no budget
            facts_of[score.tree_id].scores.append(score_to_wire(score))
    return list(facts_of.values())


def _last_stored(connection: Connection, tree_ids: Iterable[bytes]) -> Iterable[tuple[bytes, int]]:
    """Yield the time at which the last segment of each tree was stored, in milliseconds."""
    for chunk in chunks(tree_ids):
        yield from (
            (row.tree_id, row.ms) for row in connection.execute(_LAST_STORED, {"keys": chunk})
        )


def grant(connection: Connection, request: rs.GrantRoomsRequest, now_ms: int) -> list[bytes]:
    """Grant budgets, and return the trees that got one.

    Only the round after the one in force takes effect, so that a grant may be sent again. A budget
    never shrinks, and none follows a final one. Raises Refused for an old gateway, and InvalidInput
    for a tree that is named twice.
    """
    check_gateway(connection, request.gateway_epoch)
    run_id = run_row(connection, request.run_id).run_id
    ids = [grant.tree_id for grant in request.grants]
    if len(set(ids)) != len(ids):
        raise InvalidInput(f"GrantRooms of run {run_id} names a tree twice")
    growing = {
        row.tree_id
        for row in rows_in(connection, schema.trees, "tree_id", ids, run_id=run_id, state=GROWING)
    }
    in_force = budgets_of(connection, ids)
    granted = [
        grant
        for grant in request.grants
        if grant.tree_id in growing and _follows(in_force.get(grant.tree_id), grant.room)
    ]
    for grant in granted:
        _put(connection, grant, replace=grant.tree_id in in_force, now_ms=now_ms)
    return [grant.tree_id for grant in granted]


def _follows(old: tree_pb2.TreeRoom | None, new: tree_pb2.TreeRoom) -> bool:
    if old is None:
        return new.round == 1
    return new.round == old.round + 1 and new.leaves >= old.leaves and not old.final


def _put(connection: Connection, grant: rs.RoomGrant, *, replace: bool, now_ms: int) -> None:
    table, budget = schema.rooms, grant.room
    values = {
        "leaves": budget.leaves,
        "final": budget.final,
        "round": budget.round,
        "set_ms": now_ms,
    }
    if replace:
        connection.execute(update(table).where(table.c.tree_id == grant.tree_id).values(**values))
    else:
        connection.execute(insert(table).values(tree_id=grant.tree_id, **values))
