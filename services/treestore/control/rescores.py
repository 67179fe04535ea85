"""Storage of scores that were given after the run's own. They change no reward and no tree."""

import math
from collections.abc import Collection

from sqlalchemy import Connection

from banyan.errors import InvalidInput, NotFound
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from services.treestore.queries import rescores
from services.treestore.queries.rescores import Key
from services.treestore.storage import mapping, schema
from services.treestore.storage.mapping import Values
from services.treestore.storage.sql import insert_all, rows_in

_MOST = 256
_STATES = (tree_pb2.SCORE_STATE_SCORED, tree_pb2.SCORE_STATE_UNSCORABLE)


def put(
    connection: Connection, request: rs.PutRescoresRequest, now_ms: int
) -> rs.PutRescoresResponse:
    """Store the scores that are new; the first one of a leaf stays.

    Raises InvalidInput for a score that is none, NotFound for a leaf that the run does not have.
    """
    key, run_id = rescores.key_of(request.rescorer), request.rescorer.run_id
    if len(request.leaves) > _MOST:
        raise InvalidInput(f"{len(request.leaves)} scores at once; at most {_MOST} are taken")
    tree_ids = {leaf.tree_id for leaf in request.leaves}
    _check_leaves(connection, run_id, tree_ids, request.leaves)
    known = set(rescores.of_key(connection, tree_ids, key))
    rows: list[Values] = []
    for leaf in request.leaves:
        at = (leaf.tree_id, (leaf.leaf.segment, leaf.leaf.end))
        if at not in known:
            known.add(at)
            rows.append(_row(leaf, key, now_ms))
    insert_all(connection, schema.rescores, rows)
    return rs.PutRescoresResponse(stored=len(rows))


def _check_leaves(
    connection: Connection,
    run_id: str,
    tree_ids: Collection[bytes],
    leaves: Collection[rs.RescoredLeaf],
) -> None:
    trees = rows_in(connection, schema.trees, "tree_id", tree_ids, run_id=run_id)
    mine = {row.tree_id for row in trees}
    rows = rows_in(connection, schema.leaves, "tree_id", mine, listed=True)
    listed = {(row.tree_id, row.segment, row.end) for row in rows}
    for leaf in leaves:
        place = leaf.leaf
        if (leaf.tree_id, place.segment, place.end) not in listed:
            raise NotFound(
                f"run {run_id} has no leaf {place.segment.hex()[:12]}:{place.end} of tree"
                f" {leaf.tree_id.hex()[:12]}"
            )
        numbers = (leaf.score.value, leaf.duration_ms, *leaf.score.parts.values())
        if leaf.score.state not in _STATES or not all(map(math.isfinite, numbers)):
            raise InvalidInput(
                f"a score is a finite number, or UNSCORABLE; got {leaf.score.value} in state"
                f" {leaf.score.state}"
            )


def _row(leaf: rs.RescoredLeaf, key: Key, now_ms: int) -> Values:
    message = tree_pb2.Rescore(
        scored=tree_pb2.ScoredLeaf(
            leaf=leaf.leaf,
            scorer=key.scorer,
            scorer_version=key.scorer_version,
            score=leaf.score,
        ),
        settings_json=key.settings,
        stored_unix_ms=now_ms,
    )
    return {
        **mapping.RESCORE.to_columns(message),
        **key.columns,
        "tree_id": leaf.tree_id,
        "duration_ms": leaf.duration_ms,
    }
