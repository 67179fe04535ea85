"""The replayed trees of a batch: checked at its commit, read when it is trained again, shown as
lineage.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from banyan.errors import InvalidInput, Refused
from banyan.reasons import Reason
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.storage import schema
from services.treestore.storage.sql import rows_in
from services.treestore.unit_of_work.rows import CONSUMED, TRAIN

USE = "replay"


def check(
    connection: Connection, request: ts.CommitBatchRequest, held_out: Collection[bytes]
) -> None:
    """Raise Refused for a tree that no earlier batch of the run consumed, or that must not be
    trained on.
    """
    ids = {replayed.tree_id for replayed in request.replayed}
    trees = {
        row.tree_id: row
        for row in rows_in(connection, schema.trees, "tree_id", ids, run_id=request.run_id)
    }
    used = {
        row.tree_id
        for row in rows_in(connection, schema.batch_trees, "tree_id", ids, run_id=request.run_id)
    }
    for replayed in request.replayed:
        tree = trees.get(replayed.tree_id)
        name = f"tree {replayed.tree_id.hex()[:12]}"
        if tree is None or not _is_replayable(tree) or replayed.tree_id not in used:
            raise Refused(
                f"{name} was not consumed by an earlier batch of run {request.run_id}",
                Reason.NOT_REPLAYABLE,
            )
        if tree.row_digest in held_out:
            raise Refused(
                f"{name} is of the held-out row {tree.row_digest.hex()[:12]};"
                " it must not be trained on",
                Reason.HELD_OUT,
            )
        _check_place(connection, request, replayed, tree)


def _is_replayable(tree: Row[Any]) -> bool:
    return bool(tree.state == CONSUMED and tree.purpose == TRAIN)


def _check_place(
    connection: Connection,
    request: ts.CommitBatchRequest,
    replayed: ts.ReplayedTree,
    tree: Row[Any],
) -> None:
    name = f"replayed tree {replayed.tree_id.hex()[:12]}"
    if not replayed.HasField("leaf"):
        if replayed.group_id != tree.group_id:
            raise InvalidInput(
                f"{name} is of group {tree.group_id}, not {replayed.group_id};"
                " name the leaf that joins another"
            )
        return
    if replayed.group_id not in request.group_ids:
        raise InvalidInput(
            f"{name} joins group {replayed.group_id}, which the batch does not consume"
        )
    leaves, place = schema.leaves.c, replayed.leaf
    leaf = select(leaves.n).where(
        leaves.tree_id == replayed.tree_id,
        leaves.segment == place.segment,
        leaves.end == place.end,
    )
    if connection.execute(leaf).first() is None:
        raise InvalidInput(f"{name} has no leaf ({place.segment.hex()[:12]}, {place.end})")


def store(connection: Connection, request: ts.CommitBatchRequest) -> None:
    """Store the replayed trees of a batch, in their order."""
    rows = [
        {
            "run_id": request.run_id,
            "ordinal": request.ordinal,
            "tree_id": replayed.tree_id,
            "group_id": replayed.group_id,
            "segment": replayed.leaf.segment,
            "end": replayed.leaf.end,
        }
        for replayed in request.replayed
    ]
    if rows:
        connection.execute(insert(schema.batch_replays), rows)


def of_batch(connection: Connection, run_id: str, ordinal: int) -> list[ts.ReplayedTree]:
    """Return the replayed trees of a batch, in the order in which they were committed."""
    table = schema.batch_replays
    query = (
        select(table)
        .where(table.c.run_id == run_id, table.c.ordinal == ordinal)
        .order_by(table.c.n)
    )
    return [_to_wire(row) for row in connection.execute(query)]


def _to_wire(row: Row[Any]) -> ts.ReplayedTree:
    leaf = tree_pb2.LeafRef(segment=row.segment, end=row.end) if row.segment else None
    return ts.ReplayedTree(tree_id=row.tree_id, group_id=row.group_id, leaf=leaf)


def of_tree(connection: Connection, tree_id: bytes, ends: Collection[bytes]) -> Sequence[Any]:
    """Return the batches (`run_id`, `ordinal`) that replayed a tree as a whole, or a leaf in one of
    the segments `ends`.
    """
    table = schema.batch_replays
    query = (
        select(table.c.run_id, table.c.ordinal, table.c.segment)
        .where(table.c.tree_id == tree_id)
        .order_by(table.c.n)
    )
    return [row for row in connection.execute(query) if not row.segment or row.segment in ends]
