"""The newest stored success of an example, for groups in which every leaf failed.

It is the experience pool of DART-GUI (arXiv 2509.23866).
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import learner_failures
from services.treestore.queries import group_outcomes
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import CONSUMED, SCORED, TRAIN

_TREES = 16  # read at once: those with one right score, whose mean need not be right


def success(
    connection: Connection,
    request: ts.SampleReplayRequest,
    row_digest: bytes,
    used: Collection[bytes] = (),
) -> tuple[bytes, tree_pb2.LeafRef] | None:
    """Return the best leaf of the newest tree with a right one, as tree and place; None if there is
    none.

    Of equal leaves the first by place is taken.

    used: trees that the batch has already
    """
    offset = 0
    while trees := _trees(connection, request, row_digest, offset):
        unused = [row for row in trees if row.tree_id not in used]
        place = _newest_success(connection, request, unused)
        if place is not None:
            return place
        offset += len(trees)
    return None


def _newest_success(
    connection: Connection, request: ts.SampleReplayRequest, rows: Sequence[Row[Any]]
) -> tuple[bytes, tree_pb2.LeafRef] | None:
    """Return the best leaf of the first of the trees that has a right one."""
    leaves = group_outcomes.leaves(connection, {row.tree_id: row for row in rows})
    for row in rows:
        right = [
            (leaf.reward, place)
            for place, leaf in leaves[row.tree_id].items()
            if leaf.reward is not None and leaf.reward >= request.right
        ]
        if right:
            _, (segment, end) = max(right, key=lambda candidate: candidate[0])
            return row.tree_id, tree_pb2.LeafRef(segment=segment, end=end)
    return None


def _trees(
    connection: Connection, request: ts.SampleReplayRequest, row_digest: bytes, offset: int
) -> list[Row[Any]]:
    """Return the next consumed trees of an example with a right score, newest first."""
    trees, used, scores = schema.trees, schema.batch_trees, schema.scores
    right = select(scores.c.n).where(
        scores.c.tree_id == trees.c.tree_id,
        scores.c.state == SCORED,
        scores.c.value >= request.right,
    )
    query = (
        select(trees.c.tree_id, trees.c.scorers, trees.c.scorer_weights)
        .join(used, (used.c.tree_id == trees.c.tree_id) & (used.c.run_id == trees.c.run_id))
        .where(trees.c.run_id == request.run_id, trees.c.row_digest == row_digest)
        .where(trees.c.state == CONSUMED, trees.c.purpose == TRAIN, right.exists())
        .where(used.c.ordinal.between(request.first_batch, request.before_batch - 1))
        .where(used.c.ordinal.not_in(learner_failures.ordinals_set_aside(request.run_id)))
        .order_by(used.c.n.desc())
        .limit(_TREES)
        .offset(offset)
    )
    return list(connection.execute(query))
