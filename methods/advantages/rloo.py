"""rloo: a leaf's reward against the mean of the other leaves of its group.

Paper: Ahmadian et al. 2024, RLOO, arXiv 2402.14740
Formula: A_i = R_i − mean_{j≠i} R_j = n / (n − 1) · (R_i − mean)

A group with one scored leaf teaches nothing (elsewhere its advantage is its reward, an arbitrary
baseline of 0).
"""

from dataclasses import dataclass

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.plugins import Advantages, GroupTrees


@dataclass(frozen=True)
class Rloo:
    """Estimator without settings."""

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per scored leaf."""
        return groups.compared(group, lambda reward_L, _tree_L: stats.against_others(reward_L))
