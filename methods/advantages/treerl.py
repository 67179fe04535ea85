"""treerl: a branch's value against the root's and against its parent's.

Paper: Hou et al. 2025, TreeRL, arXiv 2506.11902
Formula: A(n) = [V(n) − V(root)] + [V(n) − V(parent)], V over R_i − mean_{j≠i} R_j
Left out: the published way to pick leaves, which is unknown; the draw follows from their ids

A node of its trees is a run between two forks: neither a tool's answer nor a cut parts it. V(n) is
the mean over the leaves at or below a node, and V(root) is 0 by construction. `discount: sqrt`
divides V(n) by the square root of the number of leaves below n, for the parent's as well: nodes
that many leaves share would count for each of them. The advantage holds for all tokens of a node on
every path.

As published, 16 of a group's 30 leaves are selected, at least one right answer among them, and only
these are compared and trained on: `select: 16`. By default all count: they have been sampled, and
more leaves make better values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Floats
from banyan.credit.steps import BRANCHES
from banyan.draws import key
from banyan.plugins import Advantages, GroupTrees
from banyan.tree import Leaf
from banyan.view import TreeView
from methods.advantages import checks


@dataclass(frozen=True)
class TreeRL:
    """Settings.

    discount: none or sqrt
    select: leaves of a group that count; 0 for all
    """

    discount: str = "none"
    select: int = 0

    def __post_init__(self) -> None:
        checks.one_of("discount", self.discount, ("none", "sqrt"))
        if (
            isinstance(self.select, bool)
            or not isinstance(self.select, int)
            or self.select < 0
            or self.select == 1
        ):
            raise ValueError(
                "select must be 0 for all leaves or a whole number of at least 2, got "
                f"{self.select!r}"
            )

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per branch."""
        group = selected(group, self.select) if self.select else group
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L)
        if reason:
            return groups.nothing(group, reason)
        arrays = group_arrays(group, BRANCHES)
        return arrays.node_valued(self._values(arrays))

    def _values(self, arrays: GroupArrays) -> Floats:
        worth_L = np.zeros(len(arrays.rewards_L))
        worth_L[arrays.scored_L] = stats.against_others(arrays.rewards_L[arrays.scored_L])
        value_S = arrays.mean_leaves(worth_L)
        if self.discount == "sqrt":
            value_S = value_S / np.sqrt(arrays.paths_S)
        return 2 * value_S - value_S[arrays.parent_S]


def selected(group: GroupTrees, count: int) -> GroupTrees:
    """Return the group with rewards for `count` of its scored leaves, the largest among them."""
    places = [
        (t, at)
        for t, view in enumerate(group.trees)
        for at in np.flatnonzero(np.isfinite(view.rewards_L)).tolist()
    ]
    places.sort(key=lambda place: _draw(group.trees[place[0]].leaves_L[place[1]]))
    if len(places) <= count:
        return group
    # Of equal rewards, the first drawn.
    best = max(places, key=lambda place: float(group.trees[place[0]].rewards_L[place[1]]))
    kept = set(places[: count - 1]) | {best}
    if len(kept) < count:
        kept.add(places[count - 1])
    trees = [
        _only(view, [at for tree, at in kept if tree == index])
        for index, view in enumerate(group.trees)
    ]
    return GroupTrees(group.group_id, trees)


def _draw(leaf: Leaf) -> int:
    return key(0, "treerl.select", leaf.segment, leaf.end)


def _only(view: TreeView, kept: Sequence[int]) -> TreeView:
    rewards = {view.leaves_L[at]: float(view.rewards_L[at]) for at in kept}
    return TreeView(view.tree, view.leaves_L, rewards, view.facts)
