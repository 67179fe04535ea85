"""The newest stored success of a row: what a group of which every leaf failed gets (DART's experience pool, card 47)."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import learner_failures
from services.treestore.queries import group_outcomes
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import CONSUMED, SCORED, TRAIN

_TREES = 16  # of a row that are read at once: those with a single score that is right, which the mean need not be


def success(
    connection: Connection,
    request: ts.SampleReplayRequest,
    row_digest: bytes,
    used: Collection[bytes] = (),
) -> tuple[bytes, tree_pb2.LeafRef] | None:
    """Tree and leaf: of the newest tree that has one the best leaf, of equals the first by place. used: trees
    that the batch has already."""
    offset = 0
    while found := _trees(connection, request, row_digest, offset):
        place = _newest(connection, request, [row for row in found if row.tree_id not in used])
        if place is not None:
            return place
        offset += len(found)
    return None


def _newest(
    connection: Connection, request: ts.SampleReplayRequest, rows: Sequence[Row[Any]]
) -> tuple[bytes, tree_pb2.LeafRef] | None:
    """The best leaf of the first of the trees that has a right one."""
    held = group_outcomes.leaves(connection, {row.tree_id: row for row in rows})
    for row in rows:
        right = [
            (leaf.reward, place)
            for place, leaf in held[row.tree_id].items()
            if leaf.reward is not None and leaf.reward >= request.right
        ]
        if right:
            _, (segment, end) = max(right, key=lambda found: found[0])
            return row.tree_id, tree_pb2.LeafRef(segment=segment, end=end)
    return None


def _trees(
    connection: Connection, request: ts.SampleReplayRequest, row_digest: bytes, offset: int
) -> list[Row[Any]]:
    """The next consumed trees of a row, newest first, in which a scorer said that a leaf is right."""
    trees, used, scores = schema.trees, schema.batch_trees, schema.scores
    right = select(scores.c.n).where(
        scores.c.tree_id == trees.c.tree_id,
        scores.c.state == SCORED,
        scores.c.value >= request.right,
    )
    query = (
        select(trees.c.tree_id, trees.c.scorers)
        .join(used, (used.c.tree_id == trees.c.tree_id) & (used.c.run_id == trees.c.run_id))
        .where(trees.c.run_id == request.run_id, trees.c.row_digest == row_digest)
        .where(trees.c.state == CONSUMED, trees.c.purpose == TRAIN, right.exists())
        .where(used.c.ordinal.between(request.first_batch, request.before_batch - 1))
        .where(used.c.ordinal.not_in(learner_failures.aside_of(request.run_id)))
        .order_by(used.c.n.desc())
        .limit(_TREES)
        .offset(offset)
    )
    return list(connection.execute(query))
