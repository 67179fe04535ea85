"""Room that control gives trees while they grow, and the facts on which it decides (DESIGN 6)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from services.treestore.control.runs import check_gateway, run_row
from services.treestore.queries.trees import room_to_wire, rooms_of, score_to_wire
from services.treestore.storage import schema
from services.treestore.unit_of_work.load import chunks, rows_in
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
_LAST = (
    select(schema.segments.c.tree_id, func.max(schema.segments.c.stored_ms).label("ms"))
    .where(schema.segments.c.tree_id.in_(bindparam("keys", expanding=True)))
    .group_by(schema.segments.c.tree_id)
)


def seen(connection: Connection, run_id: str) -> int:
    """A number that changes with the facts of a run: a cheap look for those who wait."""
    scores = (
        connection.scalar(_SCORED.where(_MINE, _TREES.state == GROWING), {"run_id": run_id}) or 0
    )
    return 1 + scores + (len(_growing(connection, run_id)) << 32)


def _growing(connection: Connection, run_id: str) -> list[int]:
    return list(connection.scalars(_ORDINALS, {"run_id": run_id}))


def facts(
    connection: Connection, request: rs.ReadRoomsRequest, now_ms: int, began_ms: int = 0
) -> list[rs.RoomFacts]:
    """The trees of all blocks that still grow. Time before `began_ms`, when the store was down, is no waiting."""
    blocks = sorted({ordinal // request.block for ordinal in _growing(connection, request.run_id)})
    found: list[Any] = []
    for block in blocks:
        span = {"first": block * request.block, "stop": (block + 1) * request.block}
        found += connection.execute(_OF_BLOCK, {"run_id": request.run_id, **span}).all()
    return _told(connection, found, now_ms, began_ms)


def _told(
    connection: Connection, trees: Sequence[Row[Any]], now_ms: int, began_ms: int
) -> list[rs.RoomFacts]:
    growing = [tree.tree_id for tree in trees if tree.state == GROWING]
    rooms = {
        row.tree_id: row
        for row in rows_in(connection, schema.rooms, "tree_id", [tree.tree_id for tree in trees])
    }
    ended = [
        leaf for leaf in rows_in(connection, schema.leaves, "tree_id", growing) if leaf.finished
    ]
    leaves, places = (
        Counter(leaf.tree_id for leaf in ended),
        {(leaf.tree_id, leaf.segment, leaf.end) for leaf in ended},
    )
    last = dict(_last(connection, growing))
    told: dict[bytes, rs.RoomFacts] = {}
    for tree in trees:
        room = rooms.get(tree.tree_id)
        fact = rs.RoomFacts(
            tree_id=tree.tree_id,
            group_ordinal=tree.ordinal,
            room=room_to_wire(room) if room else None,
        )
        told[tree.tree_id] = fact
        if tree.state == GROWING:
            fact.growing, fact.leaves = True, leaves[tree.tree_id]
            since = max(last.get(tree.tree_id, now_ms), room.set_ms if room else 0, began_ms)
            fact.waited_ms = max(0, now_ms - since)
    for score in rows_in(connection, schema.scores, "tree_id", growing):
        if (
            score.tree_id,
            score.segment,
            score.end,
        ) in places:  # a place that is no leaf takes no room
            told[score.tree_id].scores.append(score_to_wire(score))
    return list(told.values())


def _last(connection: Connection, tree_ids: Iterable[bytes]) -> Iterable[tuple[bytes, int]]:
    """When each tree's last segment was stored."""
    for chunk in chunks(tree_ids):
        yield from ((row.tree_id, row.ms) for row in connection.execute(_LAST, {"keys": chunk}))


def grant(connection: Connection, request: rs.GrantRoomsRequest, now_ms: int) -> list[bytes]:
    """Gives trees room; those to which it was given.

    Only the round after that in force takes effect, so that a grant may be sent again; room never shrinks.
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
    there = rooms_of(connection, ids)
    given = [
        g for g in request.grants if g.tree_id in growing and _next(there.get(g.tree_id), g.room)
    ]
    for one in given:
        _put(connection, one, one.tree_id in there, now_ms)
    return [one.tree_id for one in given]


def _next(old: tree_pb2.TreeRoom | None, new: tree_pb2.TreeRoom) -> bool:
    if old is None:
        return new.round == 1
    return new.round == old.round + 1 and new.leaves >= old.leaves and not old.final


def _put(connection: Connection, given: rs.RoomGrant, there: bool, now_ms: int) -> None:
    table, room = schema.rooms, given.room
    values = {"leaves": room.leaves, "final": room.final, "round": room.round, "set_ms": now_ms}
    if there:
        connection.execute(update(table).where(table.c.tree_id == given.tree_id).values(**values))
    else:
        connection.execute(insert(table).values(tree_id=given.tree_id, **values))
