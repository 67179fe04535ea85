"""Leaves without a score, by the store's own word or a verifier's."""

from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.wire.segments import leaf_to_wire
from services.treestore.unit_of_work.rows import TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork


def put(work: UnitOfWork, tree: TreeRow, leaf: Leaf, scorer: str, reason: str) -> None:
    """Make a leaf UNSCORABLE for a scorer, with a reason."""
    score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, reason=reason)
    scored = tree_pb2.ScoredLeaf(leaf=leaf_to_wire(leaf), scorer=scorer, score=score)
    work.put_score(events_pb2.LeafScored(run_id=tree.run_id, tree_id=tree.tree_id, scored=scored))


def put_all(work: UnitOfWork, tree: TreeRow, leaf: Leaf, reason: str) -> None:
    """Make a leaf UNSCORABLE for all scorers that have not scored it."""
    scores = work.part(tree.tree_id).scores
    for scorer in tree.scorers:
        if (leaf, scorer) not in scores:
            put(work, tree, leaf, scorer, reason)
