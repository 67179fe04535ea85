"""GRPO: a leaf's reward against the mean of its group, over the group's standard deviation.

A_i = (R_i − mean) / (std + epsilon) with the sample standard deviation over all scored leaves of all trees of the group
(Shao et al. 2024, arXiv 2402.03300). `scale: none` leaves the division out, which is `dr-grpo` (Liu et al. 2025, arXiv
2503.20783; its other half, a constant length normaliser, is a loss's). A group with one scored leaf, or without any spread,
teaches nothing: all its advantages are 0 and it says so.
"""

from dataclasses import dataclass

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.stats import Floats, Ints
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks


@dataclass(frozen=True)
class Grpo:
    """Settings: what the difference is divided by, and what keeps that division finite."""

    scale: str = "std"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        checks.one_of("scale", self.scale, ("std", "none"))
        checks.epsilon(self.epsilon)

    def estimate(self, group: GroupTrees) -> Advantages:
        """One advantage per scored leaf."""
        return groups.compared(group, self._values)

    def _values(self, reward_L: Floats, _tree_L: Ints) -> Floats:
        if self.scale == "none":
            return stats.centred(reward_L)
        return stats.standardised(reward_L, epsilon=self.epsilon)


@dataclass(frozen=True)
class DrGrpo(Grpo):
    """GRPO without the division."""

    scale: str = "none"
