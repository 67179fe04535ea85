"""What of a node's work is stored: answers AwaitIngested (PROTOCOL 3)."""

from sqlalchemy import Connection, select

from banyan.errors import NotFound, Refused
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore import schema
from services.treestore.loading import chunks
from services.treestore.rows import DROPPED


def look(connection: Connection, request: ts.AwaitIngestedRequest) -> ts.AwaitIngestedResponse:
    """What is missing, what was refused, and whether the tree is grown.

    Raises Refused once a newer claim is in force or the tree was dropped.
    """
    trees = schema.trees
    tree = connection.execute(
        select(trees.c.claim_epoch, trees.c.grown_epoch, trees.c.state).where(trees.c.tree_id == request.tree_id)
    ).first()
    if tree is None:
        raise NotFound(f"there is no tree {request.tree_id.hex()[:16] or 'without an id'}")
    if request.epoch < tree.claim_epoch:
        raise Refused(
            f"claim {request.epoch} of tree {request.tree_id.hex()[:12]} is over: {tree.claim_epoch} is in force",
            "STALE_EPOCH",
        )
    if tree.state == DROPPED:
        raise Refused(f"tree {request.tree_id.hex()[:12]} was dropped; nothing of it is stored any more", "NOT_GROWING")
    response = ts.AwaitIngestedResponse(grown=bool(tree.grown_epoch) and tree.grown_epoch == request.epoch)
    missing = set(request.segment_ids) - _stored(connection, request)
    for segment, reason, winner in _refused(connection, request, missing):
        response.refused.add(segment=segment, reason=reason, winner=winner)
        missing.discard(segment)
    response.missing.extend(segment for segment in request.segment_ids if segment in missing)
    return response


def _stored(connection: Connection, request: ts.AwaitIngestedRequest) -> set[bytes]:
    table = schema.segments
    found: set[bytes] = set()
    for chunk in chunks(request.segment_ids):
        found |= set(connection.scalars(select(table.c.id).where(table.c.id.in_(chunk), table.c.tree_id == request.tree_id)))
    return found


def _refused(
    connection: Connection, request: ts.AwaitIngestedRequest, missing: set[bytes]
) -> list[tuple[bytes, str, bytes]]:
    table = schema.refused
    mine = (table.c.tree_id == request.tree_id) & (table.c.kind == "segment") & (table.c.epoch == request.epoch)
    rows = connection.execute(select(table.c.segment, table.c.reason, table.c.winner).where(mine).order_by(table.c.n))
    return [(row.segment, row.reason, row.winner) for row in rows if row.segment in missing]


def enough(request: ts.AwaitIngestedRequest, response: ts.AwaitIngestedResponse) -> bool:
    """Whether there is nothing left to wait for."""
    return not response.missing and (response.grown or not request.grown)
