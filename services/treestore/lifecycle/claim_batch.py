"""Answers to claims: the epoch, and the tree as it is under it; many at once in one transaction."""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from banyan import order
from banyan.errors import InvalidInput, NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import claims
from services.treestore.queries import trees
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.storage.sql import rows_in
from services.treestore.unit_of_work.rows import TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

MAX_CLAIMS = 64
MAX_BYTES = 4 << 20  # of all trees in one answer
MAX_BYTES_ALONE = 32 << 20  # of a tree in an answer: half a gRPC message; larger ones are streamed
_PART_BYTES = 4 << 20  # of a part of a stream that has more than one segment
_SIZES = (
    select(schema.segments.c.tree_id, func.sum(trees.BYTES).label("bytes"))
    .where(schema.segments.c.tree_id.in_(bindparam("keys", expanding=True)))
    .group_by(schema.segments.c.tree_id)
)


def claim_one(
    connection: Connection, request: ts.ClaimTreeRequest, now_ms: int, settings: Settings
) -> ts.ClaimTreeResponse:
    """Claim a tree. Raises NotFound."""
    claiming = _Claiming(connection, [request], now_ms, settings)
    answer = claiming.claim(request, "")
    claiming.flush()
    _add_trees(connection, [(request, answer)], _sizes(connection, [request.tree_id]))
    return answer


def claim_many(
    connection: Connection,
    request: ts.ClaimTreesRequest,
    run_id: str,
    now_ms: int,
    settings: Settings,
) -> ts.ClaimTreesResponse:
    """Claim many trees, of `run_id` unless it is empty; each has its own outcome.

    Raises InvalidInput for more than MAX_CLAIMS.
    """
    if len(request.claims) > MAX_CLAIMS:
        raise InvalidInput(f"{len(request.claims)} claims at once; at most {MAX_CLAIMS} are taken")
    response = ts.ClaimTreesResponse()
    granted: list[tuple[ts.ClaimTreeRequest, ts.ClaimTreeResponse]] = []
    sizes = _sizes(connection, [claim.tree_id for claim in request.claims])
    claiming = _Claiming(connection, request.claims, now_ms, settings)
    size = 0
    for claim in request.claims:
        outcome = response.outcomes.add()
        tree_size = sizes.get(claim.tree_id, 0)
        size += tree_size if tree_size <= MAX_BYTES_ALONE else 0  # a larger one is streamed
        if granted and size > MAX_BYTES:
            outcome.refused = Reason.LATER
            continue
        try:  # a claim is refused before it has changed anything
            outcome.claim.CopyFrom(claiming.claim(claim, run_id))
            granted.append((claim, outcome.claim))
        except (NotFound, Refused) as error:
            outcome.refused, outcome.detail = error.reason, str(error)
    claiming.flush()
    _add_trees(connection, granted, sizes)
    return response


class _Claiming:
    """Claims that are read and written together."""

    def __init__(
        self,
        connection: Connection,
        requests: Iterable[ts.ClaimTreeRequest],
        now_ms: int,
        settings: Settings,
    ) -> None:
        self._connection, self._now_ms, self._settings = connection, now_ms, settings
        self._tree_ids = {request.tree_id for request in requests}
        self._work = self._load()

    def _load(self) -> UnitOfWork:
        return claims.load(self._connection, self._tree_ids, self._now_ms, self._settings)

    def claim(self, request: ts.ClaimTreeRequest, run_id: str) -> ts.ClaimTreeResponse:
        """Claim a tree, of `run_id` unless it is empty. Raises NotFound, or Refused."""
        tree = claims.known(self._work, request.tree_id)
        claims.check_owner(tree.tree_id, tree.run_id, run_id)
        if claims.is_exhausted(self._work, tree, request.ticket):
            tree = self._drop(request)
        epoch = claims.grant(
            self._work,
            tree,
            node=request.node_id,
            ticket=request.ticket,
            traceparent=request.traceparent,
        )
        return ts.ClaimTreeResponse(
            epoch=epoch,
            deadline_ms=self._settings.claim_ms if epoch else 0,
            first_traceparent=tree.claim_traceparent,
        )

    def _drop(self, request: ts.ClaimTreeRequest) -> TreeRow:
        """Drop a tree by a claim too many. Other trees of its group may go with it, so all are
        written before it and loaded again.
        """
        self.flush()
        claims.claim(
            self._connection,
            request.tree_id,
            node=request.node_id,
            ticket=request.ticket,
            now_ms=self._now_ms,
            settings=self._settings,
        )
        self._work = self._load()
        return claims.known(self._work, request.tree_id)

    def flush(self) -> None:
        """Write the claims."""
        flush(self._connection, self._work)


def _sizes(connection: Connection, tree_ids: Sequence[bytes]) -> dict[bytes, int]:
    """Return the bytes that the segments of each tree have in a message."""
    if not tree_ids:
        return {}
    rows = connection.execute(_SIZES, {"keys": list(tree_ids)})
    return {row.tree_id: int(row.bytes) for row in rows}


def _add_trees(
    connection: Connection,
    granted: Sequence[tuple[ts.ClaimTreeRequest, ts.ClaimTreeResponse]],
    sizes: Mapping[bytes, int],
) -> None:
    tree_ids = list(dict.fromkeys(claim.tree_id for claim, _ in granted))
    large = {tree_id for tree_id in tree_ids if sizes.get(tree_id, 0) > MAX_BYTES_ALONE}
    by_id = {tree.spec.tree_id: tree for tree in trees.read(connection, tree_ids, bare=large)}
    for claim, answer in granted:
        answer.tree.CopyFrom(by_id[claim.tree_id])
        answer.tree.spec.ClearField("row_json")  # what scorers and environments know, nodes do not
        trees.drop_causes(answer.tree.scores)
        answer.streamed = claim.tree_id in large


def parts(
    connection: Connection, request: ts.StreamClaimedRequest, run_id: str
) -> list[list[bytes]]:
    """Return the segments of a claimed tree, parents first, in parts that fit in a message.

    Raises NotFound, or Refused if the claim is not in force.
    """
    if run_id:
        claims.check_run(connection, request.tree_id, run_id)
    claims.check_in_force(connection, request.tree_id, request.epoch)
    places = trees.places(connection, request.tree_id)
    paths = order.paths(places)
    by_part: list[list[bytes]] = []
    capacity = 0
    for place in sorted(places, key=lambda place: paths[place.id]):
        capacity -= place.bytes
        if capacity < 0 or not by_part:
            by_part.append([])
            capacity = _PART_BYTES - place.bytes
        by_part[-1].append(place.id)
    return by_part


def part(connection: Connection, segments: Sequence[bytes]) -> ts.StreamClaimedResponse:
    """Return a part of a tree's segments."""
    rows = {row.id: row for row in rows_in(connection, schema.segments, "id", segments)}
    return ts.StreamClaimedResponse(
        segments=[trees.segment_to_wire(rows[i]) for i in segments if i in rows]
    )
