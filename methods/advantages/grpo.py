"""grpo: a leaf's reward against the mean of its group, over the group's standard deviation.

Paper: Shao et al. 2024, GRPO, arXiv 2402.03300; dr-grpo: Liu et al. 2025, arXiv 2503.20783
Formula: A_i = (R_i − mean) / (std + epsilon); dr-grpo: A_i = R_i − mean
Left out: the constant length normaliser of Dr. GRPO, which is a mode of the loss

The sample standard deviation is over all scored leaves of all trees of the group. `scale: none`
leaves the division out, which is `dr-grpo`. A group with one scored leaf, or without any spread,
teaches nothing: all its advantages are 0, with the reason.
"""

from dataclasses import dataclass

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.stats import Floats, Ints
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks


@dataclass(frozen=True)
class Grpo:
    """Settings.

    scale: divisor of the difference: std or none
    epsilon: number added to the divisor
    """

    scale: str = "std"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        checks.one_of("scale", self.scale, ("std", "none"))
        checks.epsilon(self.epsilon)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per scored leaf."""
        return groups.compared(group, self._values)

    def _values(self, reward_L: Floats, _tree_L: Ints) -> Floats:
        if self.scale == "none":
            return stats.centred(reward_L)
        return stats.standardised(reward_L, epsilon=self.epsilon)


@dataclass(frozen=True)
class DrGrpo(Grpo):
    """GRPO without the division."""

    scale: str = "none"
