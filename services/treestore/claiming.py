"""Answers to claims: the epoch, and the tree as it is under it; many at once in one transaction."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, select

from banyan.errors import InvalidInput, NotFound, Refused
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore import claims, schema, trees
from services.treestore.settings import Settings

MOST = 64
MOST_TOKENS = 256 << 10  # of the trees in one answer: some 4 MB, below the limit of a gRPC message
_TOKEN_BYTES = 16
_OF = schema.segments.c
_SIGNALS = (
    select(_OF.tree_id, func.sum(func.length(_OF.signals)).label("bytes"))
    .where(_OF.tree_id.in_(bindparam("keys", expanding=True)))
    .group_by(_OF.tree_id)
)
_SIZES = select(
    schema.trees.c.tree_id, (schema.trees.c.sampled_tokens + schema.trees.c.prompt_tokens).label("tokens")
).where(schema.trees.c.tree_id.in_(bindparam("keys", expanding=True)))


def one(connection: Connection, request: ts.ClaimTreeRequest, now_ms: int, settings: Settings) -> ts.ClaimTreeResponse:
    """One claim. Raises NotFound."""
    answer = _claim(connection, request, now_ms, settings)
    _add_trees(connection, [(request, answer)])
    return answer


def several(
    connection: Connection, request: ts.ClaimTreesRequest, run_id: str, now_ms: int, settings: Settings
) -> ts.ClaimTreesResponse:
    """Many claims, of trees of `run_id` if it is named; each has its own outcome. Raises InvalidInput for too many."""
    if len(request.claims) > MOST:
        raise InvalidInput(f"{len(request.claims)} claims at once; at most {MOST} are taken")
    response = ts.ClaimTreesResponse()
    granted: list[tuple[ts.ClaimTreeRequest, ts.ClaimTreeResponse]] = []
    sizes = _sizes(connection, [claim.tree_id for claim in request.claims])
    tokens = 0
    for claim in request.claims:
        outcome = response.outcomes.add()
        tokens += sizes.get(claim.tree_id, 0)
        if granted and tokens > MOST_TOKENS:
            outcome.refused = "LATER"
            continue
        try:  # a claim is refused before it has changed anything
            if run_id:
                claims.check_run(connection, claim.tree_id, run_id)
            outcome.claim.CopyFrom(_claim(connection, claim, now_ms, settings))
            granted.append((claim, outcome.claim))
        except (NotFound, Refused) as error:
            outcome.refused, outcome.detail = error.reason, str(error)
    _add_trees(connection, granted)
    return response


def _sizes(connection: Connection, tree_ids: Sequence[bytes]) -> dict[bytes, int]:
    """Tokens that each tree has so far, and its signals as if they were tokens."""
    if not tree_ids:
        return {}
    keys = {"keys": list(tree_ids)}
    signals = {row.tree_id: int(row.bytes or 0) // _TOKEN_BYTES for row in connection.execute(_SIGNALS, keys)}
    return {row.tree_id: row.tokens + signals.get(row.tree_id, 0) for row in connection.execute(_SIZES, keys)}


def _claim(connection: Connection, request: ts.ClaimTreeRequest, now_ms: int, settings: Settings) -> ts.ClaimTreeResponse:
    tree_id, node = request.tree_id, request.node_id
    epoch = claims.claim(connection, tree_id, node, request.ticket, now_ms, settings, request.traceparent)
    first = claims.first_trace(connection, tree_id)
    return ts.ClaimTreeResponse(epoch=epoch, deadline_ms=settings.claim_ms if epoch else 0, first_traceparent=first)


def _add_trees(connection: Connection, granted: Sequence[tuple[ts.ClaimTreeRequest, ts.ClaimTreeResponse]]) -> None:
    ids = list(dict.fromkeys(claim.tree_id for claim, _ in granted))
    found = {tree.spec.tree_id: tree for tree in trees.read(connection, ids)}
    for claim, answer in granted:
        answer.tree.CopyFrom(found[claim.tree_id])
