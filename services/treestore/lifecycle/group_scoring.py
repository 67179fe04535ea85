"""Groups that are grown as a whole, for scorers of whole groups: their leaves, and the deadline of
their scores.

The leaves of a whole group never change: a tree that was dropped before it was grown has none, one
that was dropped later keeps its leaves. So every scorer of a group, and every repetition, reads the
same.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle.claims import spec_of
from services.treestore.queries import transcripts
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import GROWING, OVER, SCORING, TreeRow


def read(connection: Connection, request: ts.ReadGroupRequest) -> ts.ReadGroupResponse:
    """Return the group of a tree, once the growth of the tree under the given claim ended."""
    trees = schema.trees
    tree = connection.execute(select(trees).where(trees.c.tree_id == request.tree_id)).first()
    if tree is None or not _has_ended(tree, request.claim_epoch):
        return ts.ReadGroupResponse()
    answer = ts.ReadGroupResponse(settled=True, group_id=tree.group_id)
    members = _members(connection, tree.run_id, tree.group_id)
    answer.whole = is_whole(members, _size(connection, tree.run_id, tree.group_id))
    if not answer.whole:
        return answer
    names = scorers(connection, tree.tree_id)
    if not names:
        return answer
    grown = [member for member in members if member.grown_epoch]
    leaves = transcripts.of_trees(connection, grown, names)
    if leaves is None:
        return ts.ReadGroupResponse()
    if any(transcript.scorers for transcript in leaves):
        answer.transcripts.extend(leaves)
    return answer


def _has_ended(tree: Row[Any], epoch: int) -> bool:
    """Return True if the end of growth under this claim is known, or will never be.

    A newer claim grows the tree and reports its own end.
    """
    return bool(tree.state != GROWING or tree.claim_epoch > epoch > 0)


def is_whole(members: Sequence[Any], size: int) -> bool:
    """Return True if all trees of a group are opened and none is growing."""
    return len(members) == size and all(member.state != GROWING for member in members)


def score_due(connection: Connection, tree: TreeRow, now_ms: int) -> int:
    """Return the deadline of scores of the tree's whole group, which runs from the end of the last
    tree's growth.
    """
    runs = schema.runs
    if connection.scalar(select(runs.c.state).where(runs.c.run_id == tree.run_id)) in OVER:
        return now_ms
    members = _members(connection, tree.run_id, tree.group_id)
    if not is_whole(members, _size(connection, tree.run_id, tree.group_id)):
        return now_ms + tree.score_deadline_ms
    others = [member for member in members if member.tree_id != tree.tree_id]
    deadlines = [
        other.score_due_ms if other.state == SCORING else other.closed_ms + tree.score_deadline_ms
        for other in others
    ]
    return max(deadlines, default=now_ms)


def scorers(connection: Connection, tree_id: bytes) -> tuple[str, ...]:
    """Return the scorers of a tree that score whole groups."""
    return tuple(spec_of(connection, tree_id).group_scorers)


def _members(connection: Connection, run_id: str, group_id: str) -> list[Row[Any]]:
    trees = schema.trees
    of_group = select(trees).where(trees.c.run_id == run_id, trees.c.group_id == group_id)
    return list(connection.execute(of_group.order_by(trees.c.tree_index)))


def _size(connection: Connection, run_id: str, group_id: str) -> int:
    groups = schema.groups
    size = select(groups.c.size).where(groups.c.run_id == run_id, groups.c.group_id == group_id)
    return connection.scalar(size) or 0
