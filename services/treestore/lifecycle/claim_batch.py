"""Answers to claims: the epoch, and the tree as it is under it; many at once in one transaction."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from banyan import order
from banyan.errors import InvalidInput, NotFound, Refused
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import claims
from services.treestore.queries import trees
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.load import rows_in

MOST = 64
MOST_BYTES = 4 << 20  # of the trees in one answer, all together
MOST_ALONE = (
    32 << 20
)  # of the only tree in an answer: half of a gRPC message; a larger one is streamed
_PART = 4 << 20  # bytes of a part of a stream, or one segment
_SIZES = (
    select(schema.segments.c.tree_id, func.sum(trees.BYTES).label("bytes"))
    .where(schema.segments.c.tree_id.in_(bindparam("keys", expanding=True)))
    .group_by(schema.segments.c.tree_id)
)


def one(
    connection: Connection, request: ts.ClaimTreeRequest, now_ms: int, settings: Settings
) -> ts.ClaimTreeResponse:
    """One claim. Raises NotFound."""
    answer = _claim(connection, request, now_ms, settings)
    _add_trees(connection, [(request, answer)], _sizes(connection, [request.tree_id]))
    return answer


def several(
    connection: Connection,
    request: ts.ClaimTreesRequest,
    run_id: str,
    now_ms: int,
    settings: Settings,
) -> ts.ClaimTreesResponse:
    """Many claims, of trees of `run_id` if it is named; each has its own outcome. Raises InvalidInput for too many."""
    if len(request.claims) > MOST:
        raise InvalidInput(f"{len(request.claims)} claims at once; at most {MOST} are taken")
    response = ts.ClaimTreesResponse()
    granted: list[tuple[ts.ClaimTreeRequest, ts.ClaimTreeResponse]] = []
    sizes = _sizes(connection, [claim.tree_id for claim in request.claims])
    size = 0
    for claim in request.claims:
        outcome = response.outcomes.add()
        alone = sizes.get(claim.tree_id, 0)
        size += alone if alone <= MOST_ALONE else 0  # a tree that is streamed takes no room here
        if granted and size > MOST_BYTES:
            outcome.refused = "LATER"
            continue
        try:  # a claim is refused before it has changed anything
            if run_id:
                claims.check_run(connection, claim.tree_id, run_id)
            outcome.claim.CopyFrom(_claim(connection, claim, now_ms, settings))
            granted.append((claim, outcome.claim))
        except (NotFound, Refused) as error:
            outcome.refused, outcome.detail = error.reason, str(error)
    _add_trees(connection, granted, sizes)
    return response


def _sizes(connection: Connection, tree_ids: Sequence[bytes]) -> dict[bytes, int]:
    """Bytes that the segments of each tree have in a message."""
    if not tree_ids:
        return {}
    return {
        row.tree_id: int(row.bytes) for row in connection.execute(_SIZES, {"keys": list(tree_ids)})
    }


def _claim(
    connection: Connection, request: ts.ClaimTreeRequest, now_ms: int, settings: Settings
) -> ts.ClaimTreeResponse:
    tree_id, node = request.tree_id, request.node_id
    epoch = claims.claim(
        connection, tree_id, node, request.ticket, now_ms, settings, request.traceparent
    )
    first = claims.first_trace(connection, tree_id)
    return ts.ClaimTreeResponse(
        epoch=epoch, deadline_ms=settings.claim_ms if epoch else 0, first_traceparent=first
    )


def _add_trees(
    connection: Connection,
    granted: Sequence[tuple[ts.ClaimTreeRequest, ts.ClaimTreeResponse]],
    sizes: Mapping[bytes, int],
) -> None:
    ids = list(dict.fromkeys(claim.tree_id for claim, _ in granted))
    large = {tree_id for tree_id in ids if sizes.get(tree_id, 0) > MOST_ALONE}
    found = {tree.spec.tree_id: tree for tree in trees.read(connection, ids, bare=large)}
    for claim, answer in granted:
        answer.tree.CopyFrom(found[claim.tree_id])
        answer.streamed = claim.tree_id in large


def parts(
    connection: Connection, request: ts.StreamClaimedRequest, run_id: str
) -> list[list[bytes]]:
    """The segments of a tree under a claim that is in force, parents first, in parts that a message holds.

    Raises NotFound, or Refused.
    """
    if run_id:
        claims.check_run(connection, request.tree_id, run_id)
    claims.check_held(connection, request.tree_id, request.epoch)
    places = trees.places(connection, request.tree_id)
    paths = order.paths(places)
    found: list[list[bytes]] = []
    room = 0
    for place in sorted(places, key=lambda place: paths[place.id]):
        room -= place.bytes
        if room < 0 or not found:
            found.append([])
            room = _PART - place.bytes
        found[-1].append(place.id)
    return found


def part(connection: Connection, segments: Sequence[bytes]) -> ts.StreamClaimedResponse:
    """A part of a tree's segments."""
    rows = {row.id: row for row in rows_in(connection, schema.segments, "id", segments)}
    return ts.StreamClaimedResponse(
        segments=[trees.segment_to_wire(rows[i]) for i in segments if i in rows]
    )
