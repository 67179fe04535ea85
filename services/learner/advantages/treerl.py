"""TreeRL: a step's value against the root's and against its parent's (Hou et al. 2025, arXiv 2506.11902).

A leaf is worth its reward against the mean of the others, R_i − mean_{j≠i} R_j; V(n) is the mean over the leaves at or below
a step; A(n) = [V(n) − V(root)] + [V(n) − V(parent)], where V(root) is 0 by construction. `discount: sqrt` divides V(n) by
the square root of the leaves below n, for the parent's as well: steps that many leaves share would count for each of them.
One advantage a step, for all of its tokens on every path.
"""

from dataclasses import dataclass

import numpy as np

from banyan.plugins import Advantages, GroupTrees
from services.learner.advantages import checks, stats
from services.learner.advantages import group as groups
from services.learner.advantages.grove import Grove, plant
from services.learner.advantages.stats import Floats


@dataclass(frozen=True)
class TreeRL:
    """Settings: how values shrink with the number of leaves below."""

    discount: str = "none"

    def __post_init__(self) -> None:
        checks.one_of("discount", self.discount, ("none", "sqrt"))

    def estimate(self, group: GroupTrees) -> Advantages:
        """One advantage per step."""
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L)
        if reason:
            return groups.nothing(group, reason)
        grove = plant(group)
        return grove.node_valued(self._values(grove))

    def _values(self, grove: Grove) -> Floats:
        worth_L = np.zeros(len(grove.rewards_L))
        worth_L[grove.scored_L] = stats.against_others(grove.rewards_L[grove.scored_L])
        value_S = grove.mean_leaves(worth_L)
        if self.discount == "sqrt":
            value_S = value_S / np.sqrt(grove.paths_S)
        return 2 * value_S - value_S[grove.parent_S]
