"""The groups that batches consumed, newest first, one a row: what is replayed is drawn from these. Reads only."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.plugins import StoredGroup
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.queries import group_outcomes
from services.treestore.storage import schema
from services.treestore.unit_of_work.load import chunks
from services.treestore.unit_of_work.rows import CONSUMED, TRAIN

CAPACITY = 512  # groups (card 41)
_SCANNED = 4  # times the capacity: groups that are looked at, rows that came again among them
_BATCHES = 64  # read at once
_TREE = [
    schema.trees.c[name] for name in ("tree_id", "group_id", "tree_index", "row_digest", "scorers")
]


def stored(connection: Connection, request: ts.SampleReplayRequest) -> list[StoredGroup]:
    """At most `capacity` groups, oldest first."""
    capacity = request.capacity or CAPACITY
    kept: dict[
        bytes, tuple[str, int]
    ] = {}  # row → its newest group, and the batch that consumed it
    trees: dict[str, list[Row[Any]]] = {}
    for scanned, (group_id, batch, members) in enumerate(_newest(connection, request)):
        if len(kept) == capacity or scanned == _SCANNED * capacity:
            break
        if members and members[0].row_digest not in kept:
            kept[members[0].row_digest] = (group_id, batch)
            trees[group_id] = members
    rewards, ordinals = _rewards(connection, trees), _ordinals(connection, request.run_id, trees)
    groups = [
        StoredGroup(g, ordinals[g], row, batch, rewards[g]) for row, (g, batch) in kept.items()
    ]
    return sorted(groups, key=lambda group: (group.batch, group.ordinal))


def _newest(
    connection: Connection, request: ts.SampleReplayRequest
) -> Iterator[tuple[str, int, list[Row[Any]]]]:
    """Groups with their batch and trees, newest batch first, in a batch the last first."""
    table, before = schema.batches, request.before_batch
    while before > request.first_batch:
        asked = table.c.ordinal.between(max(request.first_batch, before - _BATCHES), before - 1)
        query = select(table.c.ordinal, table.c.group_ids).where(
            table.c.run_id == request.run_id, asked
        )
        query = query.where(table.c.set_aside == "")  # nothing trains on what ended two learners
        found = [
            (group_id, row.ordinal)
            for row in connection.execute(query.order_by(table.c.ordinal.desc()))
            for group_id in reversed(json.loads(row.group_ids))
        ]
        members = trees_of(connection, request.run_id, (group_id for group_id, _ in found))
        yield from ((group_id, ordinal, members.get(group_id, [])) for group_id, ordinal in found)
        before = max(request.first_batch, before - _BATCHES)


def trees_of(
    connection: Connection, run_id: str, group_ids: Iterable[str]
) -> dict[str, list[Row[Any]]]:
    """The consumed training trees of groups, by index."""
    table = schema.trees
    mine = (table.c.run_id == run_id) & (table.c.state == CONSUMED) & (table.c.purpose == TRAIN)
    found: dict[str, list[Row[Any]]] = {}
    for chunk in chunks(sorted(set(group_ids))):
        query = (
            select(*_TREE)
            .where(mine, table.c.group_id.in_(chunk))
            .order_by(table.c.group_id, table.c.tree_index)
        )
        for row in connection.execute(query):
            found.setdefault(row.group_id, []).append(row)
    return found


def _rewards(
    connection: Connection, trees: Mapping[str, list[Row[Any]]]
) -> dict[str, tuple[float, ...]]:
    """Of each group: the rewards of its scored leaves, by index of the tree and then by place."""
    held = group_outcomes.leaves(
        connection, {row.tree_id: row for members in trees.values() for row in members}
    )
    return {
        group_id: tuple(
            leaf.reward
            for row in members
            for leaf in held[row.tree_id].values()
            if leaf.reward is not None
        )
        for group_id, members in trees.items()
    }


def _ordinals(connection: Connection, run_id: str, group_ids: Iterable[str]) -> dict[str, int]:
    table, found = schema.groups, dict[str, int]()
    for chunk in chunks(sorted(group_ids)):
        query = select(table.c.group_id, table.c.ordinal).where(
            table.c.run_id == run_id, table.c.group_id.in_(chunk)
        )
        found |= {row.group_id: row.ordinal for row in connection.execute(query)}
    return found
