"""tree-grpo: a leaf against its group, and against its own tree.

Paper: Ji et al. 2025, Tree-GRPO, arXiv 2509.21240
Formula: A = GRPO over the group + GRPO over the tree

`both`: the sum, each term over (std + epsilon). `tree`: the second term alone. `nested`: GRPO over
    the group, and those values once more within each tree. A tree with one scored leaf, or with
    equal ones, adds nothing.
"""

from dataclasses import dataclass

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.stats import Floats, Ints
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks


@dataclass(frozen=True)
class TreeGrpo:
    """Settings.

    peers: comparisons that count: both, tree or nested
    epsilon: number added to divisors
    """

    peers: str = "both"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        checks.one_of("peers", self.peers, ("both", "tree", "nested"))
        checks.epsilon(self.epsilon)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per scored leaf."""
        return groups.compared(group, self._values)

    def _values(self, reward_L: Floats, tree_L: Ints) -> Floats:
        group_L = stats.standardised(reward_L, epsilon=self.epsilon)
        if self.peers == "nested":
            return stats.standardised(group_L, tree_L, epsilon=self.epsilon)
        tree = stats.standardised(reward_L, tree_L, epsilon=self.epsilon)
        return tree if self.peers == "tree" else group_L + tree
