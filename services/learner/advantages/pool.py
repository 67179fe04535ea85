"""A stored success put into a group that failed (DART-GUI, arXiv 2509.23866, card 47).

Where no leaf of a group is right, its oldest one gives its place to a right leaf that was stored earlier, so that the group
teaches: eight zeros become (1, 0 × 7). Pure: which success is stored, and how old it may be, is replay's to say; the
stored leaf's tokens are another policy's, so its importance weights must be truncated.
"""

from collections.abc import Sequence

import numpy as np

from banyan.plugins import GroupTrees
from banyan.tree import Leaf
from banyan.view import TreeView


def with_success(group: GroupTrees, stored: TreeView, leaf: Leaf) -> GroupTrees:
    """The group without its oldest leaf, and with one of a stored tree's. `stored` loses all of its other rewards."""
    old = oldest(group.trees)
    trees = [_without(view, old[1]) if index == old[0] else view for index, view in enumerate(group.trees)]
    reward = float(stored.rewards_L[stored.leaves_L.index(leaf)])
    return GroupTrees(group.group_id, [*trees, TreeView(stored.tree, [leaf], {leaf: reward}, stored.facts)])


def failed(group: GroupTrees, right: float = 0.5) -> bool:
    """Whether the group has scored leaves, and none of them is right."""
    scored = [r for view in group.trees for r in view.rewards_L if np.isfinite(r)]
    return bool(scored) and max(scored) < right


def oldest(trees: Sequence[TreeView]) -> tuple[int, int]:
    """Tree and leaf that the oldest policy sampled, the first of several."""
    ages = [
        (_age(view, leaf), index, view.leaf_node_L[leaf], leaf) for index, view in enumerate(trees) for leaf in view.scored_L
    ]
    _, index, _, leaf = min(ages)
    return index, leaf


def _age(view: TreeView, leaf: int) -> tuple[int, int]:
    """Epoch and step of the oldest weights on a path."""
    segments = (view.nodes[i].segment for i in view.path(leaf) if view.nodes[i].trained)
    return min(((s.policy_epoch, s.policy_step) for s in segments), default=(0, 0))


def _without(view: TreeView, leaf: int) -> TreeView:
    """The view in which a leaf has no reward."""
    rewards = {
        place: float(r) if i != leaf and np.isfinite(r) else None
        for i, (place, r) in enumerate(zip(view.leaves_L, view.rewards_L, strict=True))
    }
    return TreeView(view.tree, view.leaves_L, rewards, view.facts)
