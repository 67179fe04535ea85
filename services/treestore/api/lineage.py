"""Lineage of segments: ancestry, scores, and the batches and policies that used them."""

from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle.claims import spec_of
from services.treestore.queries import trees as stored
from services.treestore.storage import schema
from services.treestore.training import batches, policies
from services.treestore.training.replay import record


def ancestry(connection: Connection, prefix: bytes) -> ts.GetAncestryResponse:
    """Return a segment's path from the root, and the scores of the leaves at or below it."""
    segment = stored.find(connection, schema.segments.c.id, prefix, "segment")
    table = schema.segments
    tree_id = connection.execute(select(table.c.tree_id).where(table.c.id == segment)).scalar_one()
    of_tree = select(table).where(table.c.tree_id == tree_id).order_by(table.c.n)
    rows = {row.id: row for row in connection.execute(of_tree)}  # parents first
    path = [row for row in rows.values() if _is_above(rows, row.id, segment)]
    below = {i for i in rows if _is_above(rows, segment, i)}
    scores = connection.execute(
        select(schema.scores).where(schema.scores.c.tree_id == tree_id).order_by(schema.scores.c.n)
    )
    return ts.GetAncestryResponse(
        segments=[stored.segment_to_wire(row) for row in path],
        scores=[stored.score_to_wire(row) for row in scores if row.segment in below],
        spec=spec_of(connection, tree_id),
    )


def _is_above(rows: dict[bytes, Row[Any]], upper: bytes, lower: bytes) -> bool:
    segment = lower
    while segment:
        if segment == upper:
            return True
        segment = rows[segment].parent
    return False


def consumers(connection: Connection, prefix: bytes) -> ts.ListConsumersResponse:
    """Return the batches that trained on a segment's tree, the one that consumed it first, with the
    policies that they made.
    """
    segment = stored.find(connection, schema.segments.c.id, prefix, "segment")
    tree_id = connection.execute(
        select(schema.segments.c.tree_id).where(schema.segments.c.id == segment)
    ).scalar_one()
    used = schema.batch_trees
    consumed = connection.execute(select(used).where(used.c.tree_id == tree_id).order_by(used.c.n))
    uses = [(row.run_id, row.ordinal, row.use) for row in consumed]
    replays = record.of_tree(connection, tree_id, _below(connection, tree_id, segment))
    uses += dict.fromkeys((row.run_id, row.ordinal, record.USE) for row in replays)
    response = ts.ListConsumersResponse()
    for run_id, ordinal, use in uses:
        _add(connection, response.consumers.add(), run_id, ordinal, use)
    return response


def _below(connection: Connection, tree_id: bytes, segment: bytes) -> set[bytes]:
    """Return the segment and all that continue from it."""
    table = schema.segments
    rows = connection.execute(
        select(table.c.id, table.c.parent).where(table.c.tree_id == tree_id).order_by(table.c.n)
    )
    parents: dict[bytes, Any] = {row.id: row for row in rows}  # parents first
    return {i for i in parents if _is_above(parents, segment, i)}


def _add(
    connection: Connection, consumer: ts.Consumer, run_id: str, ordinal: int, use: str
) -> None:
    batch = batches.read(connection, run_id, ordinal)
    if batch is not None:
        consumer.batch.CopyFrom(batch)
        consumer.batch.use = use
    published = policies.of_batch(connection, run_id, ordinal)
    if published is not None:
        consumer.policy.CopyFrom(published.policy)
