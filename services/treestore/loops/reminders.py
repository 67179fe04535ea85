"""Reminders: events published again for leaves without a score, as the log may have lost them."""

from collections.abc import Collection

from banyan.tree import Leaf
from banyan.v1 import events_pb2
from banyan.wire.segments import leaf_to_wire
from services.chassis.messaging import subjects
from services.treestore.unit_of_work import completion
from services.treestore.unit_of_work.rows import SCORING, TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

_MAX_LEAVES = 16  # in one message; their texts may be long


def remind(work: UnitOfWork, tree: TreeRow, group_scorers: Collection[str]) -> None:
    """Record again the ends of leaves without a score, and for group scorers the end of growth.

    The log may have lost these events, and only the store knows that scores are owed.
    """
    work.change(tree).remind_due_ms = 0
    part, is_grown = work.part(tree.tree_id), tree.state == SCORING
    alone = [scorer for scorer in tree.scorers if scorer not in group_scorers]
    inside = work.inside(tree.tree_id)
    unscored = completion.unscored(part.leaves, alone, part.scores, grown=is_grown, inside=inside)
    for start in range(0, len(unscored), _MAX_LEAVES):
        leaves = [_finished(work, tree, leaf) for leaf in unscored[start : start + _MAX_LEAVES]]
        work.outgoing.record(
            subjects.lineage(tree.run_id, "leaf"),
            f"remind-{tree.tree_id.hex()}-{start}-{work.now_ms}",
            events_pb2.LeavesFinished(leaves=leaves),
            tree.traceparent,
        )
    names = tuple(group_scorers)
    if is_grown and completion.unscored(part.leaves, names, part.scores, grown=True):
        work.outgoing.record(
            subjects.lineage(tree.run_id, "grown"),
            f"remind-{tree.tree_id.hex()}-grown-{work.now_ms}",
            events_pb2.TreesGrown(trees=[_grown(work, tree)]),
            tree.traceparent,
        )


def _grown(work: UnitOfWork, tree: TreeRow) -> events_pb2.TreeGrown:
    leaves = completion.listed(work.part(tree.tree_id).leaves)
    return events_pb2.TreeGrown(
        run_id=tree.run_id,
        tree_id=tree.tree_id,
        claim_epoch=tree.grown_epoch,
        leaves=[leaf_to_wire(leaf) for leaf in leaves],
        node_id=tree.grown_node,
    )


def _finished(work: UnitOfWork, tree: TreeRow, leaf: Leaf) -> events_pb2.LeafFinished:
    row = work.part(tree.tree_id).leaves[leaf]
    return events_pb2.LeafFinished(
        run_id=tree.run_id,
        tree_id=tree.tree_id,
        claim_epoch=tree.claim_epoch,
        leaf=leaf_to_wire(leaf),
        reason=row.reason,
        completion=row.completion or "",
    )
