"""The buffer of consumed groups, newest first, one for each example; replays are drawn from it.
Reads only.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.plugins import StoredGroup
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.queries import group_outcomes
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks
from services.treestore.training.replay import draw
from services.treestore.training.replay.draw import ConsumedGroup
from services.treestore.unit_of_work.rows import CONSUMED, TRAIN

_BATCHES = 64  # read at once
_TREE = [
    schema.trees.c[name]
    for name in ("tree_id", "group_id", "tree_index", "row_digest", "scorers", "scorer_weights")
]


def stored(connection: Connection, request: ts.SampleReplayRequest) -> list[StoredGroup]:
    """Return at most `capacity` groups, oldest first."""
    kept = draw.newest(_newest_first(connection, request), request.capacity)
    trees = {group.group_id: group.trees for group in kept}
    rewards, ordinals = _rewards(connection, trees), _ordinals(connection, request.run_id, trees)
    groups = [
        StoredGroup(
            group.group_id,
            ordinal=ordinals[group.group_id],
            row=group.row,
            batch=group.batch,
            rewards=rewards[group.group_id],
        )
        for group in kept
    ]
    return sorted(groups, key=lambda group: (group.batch, group.ordinal))


def _newest_first(
    connection: Connection, request: ts.SampleReplayRequest
) -> Iterator[ConsumedGroup[Row[Any]]]:
    """Yield the groups of the newest batch first, and of a batch the last first."""
    table, before = schema.batches, request.before_batch
    while before > request.first_batch:
        first = max(request.first_batch, before - _BATCHES)
        query = select(table.c.ordinal, table.c.group_ids).where(
            table.c.run_id == request.run_id,
            table.c.ordinal.between(first, before - 1),
            table.c.set_aside == "",  # nothing trains on a batch that ended two learners
        )
        groups = [
            (group_id, row.ordinal)
            for row in connection.execute(query.order_by(table.c.ordinal.desc()))
            for group_id in reversed(json.loads(row.group_ids))
        ]
        trees = trees_of(connection, request.run_id, (group_id for group_id, _ in groups))
        for group_id, ordinal in groups:
            members = trees.get(group_id, [])
            row = members[0].row_digest if members else b""
            yield ConsumedGroup(group_id, row, ordinal, members)
        before = first


def trees_of(
    connection: Connection, run_id: str, group_ids: Iterable[str]
) -> dict[str, list[Row[Any]]]:
    """Return the consumed training trees of groups, by index."""
    table = schema.trees
    consumed = (table.c.run_id == run_id) & (table.c.state == CONSUMED) & (table.c.purpose == TRAIN)
    trees: dict[str, list[Row[Any]]] = {}
    for chunk in chunks(sorted(set(group_ids))):
        query = (
            select(*_TREE)
            .where(consumed, table.c.group_id.in_(chunk))
            .order_by(table.c.group_id, table.c.tree_index)
        )
        for row in connection.execute(query):
            trees.setdefault(row.group_id, []).append(row)
    return trees


def _rewards(
    connection: Connection, trees: Mapping[str, Sequence[Row[Any]]]
) -> dict[str, tuple[float, ...]]:
    """Return the rewards of each group's scored leaves, by index of the tree and then by place."""
    rows = {row.tree_id: row for members in trees.values() for row in members}
    leaves = group_outcomes.leaves(connection, rows)
    return {
        group_id: tuple(
            leaf.reward
            for row in members
            for leaf in leaves[row.tree_id].values()
            if leaf.reward is not None
        )
        for group_id, members in trees.items()
    }


def _ordinals(connection: Connection, run_id: str, group_ids: Iterable[str]) -> dict[str, int]:
    table, ordinals = schema.groups, dict[str, int]()
    for chunk in chunks(sorted(group_ids)):
        query = select(table.c.group_id, table.c.ordinal).where(
            table.c.run_id == run_id, table.c.group_id.in_(chunk)
        )
        ordinals |= {row.group_id: row.ordinal for row in connection.execute(query)}
    return ordinals
