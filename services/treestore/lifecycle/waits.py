"""What of a node's work is stored, how it was scored, and its room (PROTOCOL 3).

Answers AwaitIngested, AwaitTreesIngested and AwaitScores.
"""

from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, select

from banyan.errors import NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import claims
from services.treestore.queries.trees import rooms_of, score_to_wire
from services.treestore.storage import schema
from services.treestore.unit_of_work.load import chunks
from services.treestore.unit_of_work.rows import DROPPED, GROWING

MOST = 64  # trees asked for at once
# Made once: a node asks for each of its trees after each of its messages.
_ID: BindParameter[bytes] = bindparam("tree_id")
_TREE = select(schema.trees.c.claim_epoch, schema.trees.c.grown_epoch, schema.trees.c.state).where(
    schema.trees.c.tree_id == _ID
)
_STORED = select(schema.segments.c.id).where(
    schema.segments.c.id.in_(bindparam("keys", expanding=True)), schema.segments.c.tree_id == _ID
)
_SCORES = schema.scores.select().where(schema.scores.c.tree_id == _ID).order_by(schema.scores.c.n)
_OF = schema.refused.c
_REFUSED = (
    select(_OF.segment, _OF.reason, _OF.winner)
    .where(_OF.tree_id == _ID, _OF.kind == "segment", _OF.epoch == bindparam("epoch"))
    .order_by(_OF.n)
)


def look(connection: Connection, request: ts.AwaitIngestedRequest) -> ts.AwaitIngestedResponse:
    """What is missing, what was refused, and whether the tree is grown.

    Raises Refused once a newer claim is in force or the tree was dropped.
    """
    tree = _claimed(connection, request.tree_id, request.epoch)
    response = ts.AwaitIngestedResponse(
        grown=bool(tree.grown_epoch) and tree.grown_epoch == request.epoch
    )
    missing = set(request.segment_ids) - _stored(connection, request)
    for segment, reason, winner in _refused(connection, request, missing) if missing else ():
        response.refused.add(segment=segment, reason=reason, winner=winner)
        missing.discard(segment)
    response.missing.extend(segment for segment in request.segment_ids if segment in missing)
    return response


def several(
    connection: Connection,
    request: ts.AwaitTreesIngestedRequest,
    run_id: str,
    before: ts.AwaitTreesIngestedResponse,
) -> ts.AwaitTreesIngestedResponse:
    """The same of many trees, of `run_id` if it is named; each has its own outcome. before: the last look, or an empty one.

    What was final then is not looked at again.
    """
    response = ts.AwaitTreesIngestedResponse()
    known: list[ts.IngestOutcome | None] = [*before.outcomes] or [None] * len(request.trees)
    for one, last in zip(request.trees, known, strict=True):
        if last is not None and _final(one, last):
            response.outcomes.append(last)
            continue
        outcome = response.outcomes.add()
        try:
            if run_id:
                claims.check_run(connection, one.tree_id, run_id)
            outcome.answer.CopyFrom(look(connection, one))
        except (NotFound, Refused) as error:
            outcome.refused, outcome.detail = error.reason, str(error)
    return response


def _claimed(connection: Connection, tree_id: bytes, epoch: int) -> Row[Any, Any, Any]:
    tree = connection.execute(_TREE, {"tree_id": tree_id}).first()
    if tree is None:
        raise NotFound(f"there is no tree {tree_id.hex()[:16] or 'without an id'}")
    if epoch < tree.claim_epoch:
        raise Refused(
            f"claim {epoch} of tree {tree_id.hex()[:12]} is over: {tree.claim_epoch} is in force",
            Reason.STALE_EPOCH,
        )
    if tree.state == DROPPED:
        raise Refused(
            f"tree {tree_id.hex()[:12]} was dropped; nothing of it is stored any more",
            Reason.NOT_GROWING,
        )
    return tree


def scores(connection: Connection, request: ts.AwaitScoresRequest) -> ts.AwaitScoresResponse:
    """All scores and the room of a tree that grows under this claim. Raises Refused like `look`, and for any other tree."""
    tree = _claimed(connection, request.tree_id, request.epoch)
    if tree.state != GROWING or request.epoch != tree.claim_epoch:
        raise Refused(
            f"tree {request.tree_id.hex()[:12]} does not grow under claim {request.epoch}",
            Reason.NOT_GROWING,
        )
    found = [
        score_to_wire(row) for row in connection.execute(_SCORES, {"tree_id": request.tree_id})
    ]
    return ts.AwaitScoresResponse(
        scores=found, room=rooms_of(connection, [request.tree_id]).get(request.tree_id)
    )


def news(request: ts.AwaitScoresRequest, response: ts.AwaitScoresResponse) -> bool:
    """Whether there is what the node waits for."""
    later = request.HasField("room_known") and response.room.round > request.room_known
    return later or len(response.scores) > request.known


def _stored(connection: Connection, request: ts.AwaitIngestedRequest) -> set[bytes]:
    found: set[bytes] = set()
    for chunk in chunks(request.segment_ids):
        found |= set(connection.scalars(_STORED, {"keys": chunk, "tree_id": request.tree_id}))
    return found


def _refused(
    connection: Connection, request: ts.AwaitIngestedRequest, missing: set[bytes]
) -> list[tuple[bytes, str, bytes]]:
    rows = connection.execute(_REFUSED, {"tree_id": request.tree_id, "epoch": request.epoch})
    return [(row.segment, row.reason, row.winner) for row in rows if row.segment in missing]


def enough(request: ts.AwaitIngestedRequest, response: ts.AwaitIngestedResponse) -> bool:
    """Whether there is nothing left to wait for."""
    return not response.missing and (response.grown or not request.grown)


def all_enough(
    request: ts.AwaitTreesIngestedRequest, response: ts.AwaitTreesIngestedResponse
) -> bool:
    """Whether there is nothing left to wait for of any tree."""
    return all(
        _final(one, outcome) for one, outcome in zip(request.trees, response.outcomes, strict=True)
    )


def _final(request: ts.AwaitIngestedRequest, outcome: ts.IngestOutcome) -> bool:
    return bool(outcome.refused) or enough(request, outcome.answer)
