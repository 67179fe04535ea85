"""Answers to nodes that wait: stored segments, scores, and the growth budget of a tree.

See docs/protocol.md, Ending a tree. They answer AwaitIngested, AwaitTreesIngested and AwaitScores.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, select

from banyan.errors import NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import claims
from services.treestore.queries.trees import budgets_of, drop_causes, score_to_wire
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks
from services.treestore.unit_of_work.rows import DROPPED, GROWING

MAX_TREES = 64  # in one request
# Made once: a node asks for each of its trees after each of its messages.
_ID: BindParameter[bytes] = bindparam("tree_id")
_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)
_T = schema.trees.c
_TREES = select(_T.tree_id, _T.run_id, _T.claim_epoch, _T.grown_epoch, _T.state).where(
    _T.tree_id.in_(_KEYS)
)
_STORED = select(schema.segments.c.tree_id, schema.segments.c.id).where(
    schema.segments.c.id.in_(_KEYS)
)
_SCORES = schema.scores.select().where(schema.scores.c.tree_id == _ID).order_by(schema.scores.c.n)
_R = schema.refused.c
_REFUSED = (
    select(_R.segment, _R.reason, _R.winner)
    .where(_R.tree_id == _ID, _R.kind == "segment", _R.epoch == bindparam("epoch"))
    .order_by(_R.n)
)


Tree = Row[Any, Any, Any, Any, Any]


def ingested(connection: Connection, request: ts.AwaitIngestedRequest) -> ts.AwaitIngestedResponse:
    """Return the missing and the refused segments, and whether the tree is grown.

    Raises NotFound, and Refused once a newer claim is in force or the tree was dropped.
    """
    tree = _claimed(_trees(connection, [request.tree_id]), request)
    return _ingested(connection, tree, request, _stored(connection, [request]))


def _ingested(
    connection: Connection,
    tree: Tree,
    request: ts.AwaitIngestedRequest,
    stored: Set[tuple[bytes, bytes]],
) -> ts.AwaitIngestedResponse:
    response = ts.AwaitIngestedResponse(
        grown=bool(tree.grown_epoch) and tree.grown_epoch == request.epoch
    )
    missing = {i for i in request.segment_ids if (request.tree_id, i) not in stored}
    if missing:
        query = {"tree_id": request.tree_id, "epoch": request.epoch}
        for row in connection.execute(_REFUSED, query):
            if row.segment in missing:
                response.refused.add(segment=row.segment, reason=row.reason, winner=row.winner)
                missing.discard(row.segment)
    response.missing.extend(segment for segment in request.segment_ids if segment in missing)
    return response


def _trees(connection: Connection, tree_ids: Iterable[bytes]) -> dict[bytes, Tree]:
    return {
        row.tree_id: row
        for chunk in chunks(tree_ids)
        for row in connection.execute(_TREES, {"keys": chunk})
    }


def _stored(
    connection: Connection, requests: Iterable[ts.AwaitIngestedRequest]
) -> set[tuple[bytes, bytes]]:
    """Return the trees and ids of those segments in requests that are stored."""
    segment_ids = (i for request in requests for i in request.segment_ids)
    return {
        (row.tree_id, row.id)
        for chunk in chunks(segment_ids)
        for row in connection.execute(_STORED, {"keys": chunk})
    }


def ingested_trees(
    connection: Connection,
    request: ts.AwaitTreesIngestedRequest,
    run_id: str,
    before: ts.AwaitTreesIngestedResponse,
) -> ts.AwaitTreesIngestedResponse:
    """Return `ingested` for many trees, of `run_id` unless it is empty; each has its own outcome.

    before: the previous answer, or an empty one; its final outcomes are not read again
    """
    response = ts.AwaitTreesIngestedResponse()
    previous: list[ts.IngestOutcome | None] = [*before.outcomes] or [None] * len(request.trees)
    pairs = list(zip(request.trees, previous, strict=True))
    open_requests = [tree for tree, last in pairs if last is None or not _is_final(tree, last)]
    trees = _trees(connection, {tree.tree_id for tree in open_requests})
    stored = _stored(connection, open_requests)
    for tree_request, last in pairs:
        if last is not None and _is_final(tree_request, last):
            response.outcomes.append(last)
            continue
        outcome = response.outcomes.add()
        try:
            tree = _claimed(trees, tree_request, run_id)
            outcome.answer.CopyFrom(_ingested(connection, tree, tree_request, stored))
        except (NotFound, Refused) as error:
            outcome.refused, outcome.detail = error.reason, str(error)
    return response


def is_complete(request: ts.AwaitIngestedRequest, response: ts.AwaitIngestedResponse) -> bool:
    """Return True if nothing is left to wait for."""
    return not response.missing and (response.grown or not request.grown)


def all_complete(
    request: ts.AwaitTreesIngestedRequest, response: ts.AwaitTreesIngestedResponse
) -> bool:
    """Return True if nothing is left to wait for, for any tree."""
    pairs = zip(request.trees, response.outcomes, strict=True)
    return all(_is_final(tree_request, outcome) for tree_request, outcome in pairs)


def _is_final(request: ts.AwaitIngestedRequest, outcome: ts.IngestOutcome) -> bool:
    return bool(outcome.refused) or is_complete(request, outcome.answer)


def scores(connection: Connection, request: ts.AwaitScoresRequest) -> ts.AwaitScoresResponse:
    """Return all scores and the growth budget of a tree that grows under this claim.

    Raises NotFound, and Refused for any other tree.
    """
    tree = _claimed(_trees(connection, [request.tree_id]), request)
    if tree.state != GROWING or request.epoch != tree.claim_epoch:
        raise Refused(
            f"tree {request.tree_id.hex()[:12]} does not grow under claim {request.epoch}",
            Reason.NOT_GROWING,
        )
    rows = connection.execute(_SCORES, {"tree_id": request.tree_id})
    scored = [score_to_wire(row) for row in rows]
    drop_causes(scored)
    return ts.AwaitScoresResponse(
        scores=scored,
        room=budgets_of(connection, [request.tree_id]).get(request.tree_id),
    )


def has_news(request: ts.AwaitScoresRequest, response: ts.AwaitScoresResponse) -> bool:
    """Return True if there are scores, or a round of the growth budget, that the node does not
    know.
    """
    later = request.HasField("room_known") and response.room.round > request.room_known
    return later or len(response.scores) > request.known


def _claimed(
    trees: Mapping[bytes, Tree],
    request: ts.AwaitIngestedRequest | ts.AwaitScoresRequest,
    run_id: str = "",
) -> Tree:
    """Return the tree of a request, of `run_id` unless it is empty. Raises NotFound, or Refused."""
    tree_id, epoch = request.tree_id, request.epoch
    tree = trees.get(tree_id)
    if tree is None:
        raise NotFound(f"there is no tree {tree_id.hex()[:16] or 'without an id'}")
    claims.check_owner(tree_id, tree.run_id, run_id)
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
