"""Where a segment came from and what it was used for: ancestry, scores, batches, policies."""

from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.v1 import treestore_service_pb2 as ts
from services.treestore import batches, policies, schema
from services.treestore import trees as stored
from services.treestore.claims import spec_of


def ancestry(connection: Connection, prefix: bytes) -> ts.GetAncestryResponse:
    """A segment's path from the root, and the scores of the leaves at or below it."""
    segment = stored.find(connection, schema.segments, schema.segments.c.id, prefix, "segment")
    table = schema.segments
    tree_id = connection.execute(select(table.c.tree_id).where(table.c.id == segment)).scalar_one()
    found = connection.execute(select(table).where(table.c.tree_id == tree_id).order_by(table.c.n))
    rows = {row.id: row for row in found}  # parents first
    path = [row for row in rows.values() if _above(rows, row.id, segment)]
    below = {i for i in rows if _above(rows, segment, i)}
    scores = connection.execute(select(schema.scores).where(schema.scores.c.tree_id == tree_id).order_by(schema.scores.c.n))
    return ts.GetAncestryResponse(
        segments=[stored.segment_to_wire(row) for row in path],
        scores=[stored.score_to_wire(row) for row in scores if row.segment in below],
        spec=spec_of(connection, tree_id),
    )


def _above(rows: dict[bytes, Row[Any]], upper: bytes, lower: bytes) -> bool:
    at = lower
    while at:
        if at == upper:
            return True
        at = rows[at].parent
    return False


def consumers(connection: Connection, prefix: bytes) -> ts.ListConsumersResponse:
    """The batches that hold a segment's tree, with the policies that they made."""
    segment = stored.find(connection, schema.segments, schema.segments.c.id, prefix, "segment")
    tree_id = connection.execute(select(schema.segments.c.tree_id).where(schema.segments.c.id == segment)).scalar_one()
    used = schema.batch_trees
    response = ts.ListConsumersResponse()
    for row in connection.execute(select(used).where(used.c.tree_id == tree_id).order_by(used.c.n)):
        batch = batches.read(connection, row.run_id, row.ordinal)
        consumer = response.consumers.add()
        if batch is not None:
            consumer.batch.CopyFrom(batch)
        made = policies.of_batch(connection, row.run_id, row.ordinal)
        if made is not None:
            consumer.policy.CopyFrom(made.policy)
    return response
