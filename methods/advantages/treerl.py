"""TreeRL: a branch's value against the root's and against its parent's (Hou et al. 2025, arXiv 2506.11902).

A node of its trees is what lies between two forks: neither a tool's answer nor a cut parts it. A leaf is worth its reward
against the mean of the others, R_i − mean_{j≠i} R_j; V(n) is the mean over the leaves at or below a node;
A(n) = [V(n) − V(root)] + [V(n) − V(parent)], where V(root) is 0 by construction. `discount: sqrt` divides V(n) by the square
root of the leaves below n, for the parent's as well: nodes that many leaves share would count for each of them. One
advantage a node, for all of its tokens on every path.

As published, 16 of a group's 30 leaves are selected, one right answer at least among them, and only these are compared and
trained on: `select: 16`. How they are picked is not on our card; here the draw follows from the leaves' names. By default
all count: what was sampled is paid for, and more leaves make better values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.grove import Grove, plant
from banyan.credit.stats import Floats
from banyan.credit.steps import BRANCHES
from banyan.draws import key
from banyan.plugins import Advantages, GroupTrees
from banyan.tree import Leaf
from banyan.view import TreeView
from methods.advantages import checks


@dataclass(frozen=True)
class TreeRL:
    """Settings: how values shrink with the number of leaves below, and how many leaves of a group count (0: all)."""

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
                f"select must be 0 for all leaves or a whole number of at least 2, got {self.select!r}"
            )

    def estimate(self, group: GroupTrees) -> Advantages:
        """One advantage per branch."""
        group = selected(group, self.select) if self.select else group
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L)
        if reason:
            return groups.nothing(group, reason)
        grove = plant(group, BRANCHES)
        return grove.node_valued(self._values(grove))

    def _values(self, grove: Grove) -> Floats:
        worth_L = np.zeros(len(grove.rewards_L))
        worth_L[grove.scored_L] = stats.against_others(grove.rewards_L[grove.scored_L])
        value_S = grove.mean_leaves(worth_L)
        if self.discount == "sqrt":
            value_S = value_S / np.sqrt(grove.paths_S)
        return 2 * value_S - value_S[grove.parent_S]


def selected(group: GroupTrees, count: int) -> GroupTrees:
    """The group with rewards for so many of its scored leaves, one with the largest reward among them."""
    places = [
        (t, at)
        for t, view in enumerate(group.trees)
        for at in np.flatnonzero(np.isfinite(view.rewards_L)).tolist()
    ]
    places.sort(key=lambda place: _draw(group.trees[place[0]].leaves_L[place[1]]))
    if len(places) <= count:
        return group
    best = max(
        places, key=lambda place: float(group.trees[place[0]].rewards_L[place[1]])
    )  # of equals the first drawn
    kept = set(places[: count - 1]) | {best}
    kept |= set(places[count - 1 : count]) if len(kept) < count else set()
    return GroupTrees(
        group.group_id,
        [_only(v, [at for i, at in kept if i == t]) for t, v in enumerate(group.trees)],
    )


def _draw(leaf: Leaf) -> int:
    return key(0, "treerl.select", leaf.segment, leaf.end)


def _only(view: TreeView, kept: Sequence[int]) -> TreeView:
    rewards = {view.leaves_L[at]: float(view.rewards_L[at]) for at in kept}
    return TreeView(view.tree, view.leaves_L, rewards, view.facts)
