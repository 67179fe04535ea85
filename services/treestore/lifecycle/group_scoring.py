"""Groups that are grown as a whole, for scorers of whole groups: which leaves they have, and how long their scores may take.

What belongs to a whole group never changes: a tree that was dropped before it was grown brings nothing, one that was dropped
later keeps its leaves. So whoever scores the group, and however often, reads the same.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle.claims import spec_of
from services.treestore.queries import transcripts
from services.treestore.storage import schema
from services.treestore.unit_of_work.load import OVER
from services.treestore.unit_of_work.rows import (
    CLOSED,
    CONSUMED,
    DROPPED,
    GROWING,
    SCORING,
    TreeRow,
)

_GROWN = (SCORING, CLOSED, CONSUMED, DROPPED)


def read(connection: Connection, request: ts.ReadGroupRequest) -> ts.ReadGroupResponse:
    """The group of a tree whose growth ended."""
    trees = schema.trees
    tree = connection.execute(select(trees).where(trees.c.tree_id == request.tree_id)).first()
    if tree is None or not _ended(tree, request.claim_epoch):
        return ts.ReadGroupResponse()
    answer = ts.ReadGroupResponse(settled=True, group_id=tree.group_id)
    mates = _mates(connection, tree.run_id, tree.group_id)
    answer.whole = whole(mates, _size(connection, tree.run_id, tree.group_id))
    if not answer.whole:
        return answer
    names = scorers(connection, tree.tree_id)
    grown = [mate for mate in mates if mate.grown_epoch]
    found = transcripts.of_trees(connection, grown, names) if names else []
    if found is None:
        return ts.ReadGroupResponse()
    if any(transcript.scorers for transcript in found):
        answer.transcripts.extend(found)
    return answer


def _ended(tree: Row[Any], epoch: int) -> bool:
    """Whether the end under this claim is known, or will never be: a newer claim grows the tree, and says its own end."""
    return tree.state in _GROWN or tree.claim_epoch > epoch > 0


def whole(mates: Sequence[Any], size: int) -> bool:
    """Whether all trees of a group are opened and none grows any more."""
    return len(mates) == size and all(mate.state != GROWING for mate in mates)


def score_due(connection: Connection, tree: TreeRow, now_ms: int) -> int:
    """Until when scores of its whole group may come: the deadline runs from the end of the last tree's growth."""
    runs = schema.runs
    if connection.scalar(select(runs.c.state).where(runs.c.run_id == tree.run_id)) in OVER:
        return now_ms
    mates = _mates(connection, tree.run_id, tree.group_id)
    if not whole(mates, _size(connection, tree.run_id, tree.group_id)):
        return now_ms + tree.score_deadline_ms
    others = [mate for mate in mates if mate.tree_id != tree.tree_id]
    ends = [
        m.score_due_ms if m.state == SCORING else m.closed_ms + tree.score_deadline_ms
        for m in others
    ]
    return max(ends, default=now_ms)


def scorers(connection: Connection, tree_id: bytes) -> tuple[str, ...]:
    """The scorers of a tree that score whole groups."""
    return tuple(spec_of(connection, tree_id).group_scorers)


def _mates(connection: Connection, run_id: str, group_id: str) -> list[Row[Any]]:
    trees = schema.trees
    of_group = select(trees).where(trees.c.run_id == run_id, trees.c.group_id == group_id)
    return list(connection.execute(of_group.order_by(trees.c.tree_index)))


def _size(connection: Connection, run_id: str, group_id: str) -> int:
    groups = schema.groups
    size = select(groups.c.size).where(groups.c.run_id == run_id, groups.c.group_id == group_id)
    return connection.scalar(size) or 0
