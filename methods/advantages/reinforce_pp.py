"""reinforce++: a leaf's reward, whitened over all trained tokens of the batch.

Paper: Hu 2025, REINFORCE++, arXiv 2501.03262
Formula: A_i = whiten(R_i); reinforce++-baseline: A_i = whiten(R_i − mean of the group)

The peer group is the batch: the batch stage whitens (x − mean) / sqrt(var + 1e-8), unbiased, a
value counting once a path token. So a group of one leaf, or without a spread, takes part.
`reinforce++-baseline` subtracts the group's mean first; there such a group teaches nothing, as with
GRPO.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks


@dataclass(frozen=True)
class ReinforcePP:
    """Settings. whiten: whether the batch is whitened."""

    alone: ClassVar[bool] = True
    whiten: bool = True

    def __post_init__(self) -> None:
        checks.flag("whiten", self.whiten)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return the reward of each scored leaf."""
        rewards_L = groups.rewards_of(group)
        skip = "" if np.isfinite(rewards_L).any() else "0 scored leaves"
        return Advantages(groups.by_tree(group, rewards_L), skip=skip)


@dataclass(frozen=True)
class ReinforcePPBaseline:
    """Settings. whiten: whether the batch is whitened."""

    whiten: bool = True

    def __post_init__(self) -> None:
        checks.flag("whiten", self.whiten)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return the reward of each scored leaf against the mean of its group."""
        return groups.compared(group, lambda reward_L, _tree_L: stats.centred(reward_L))
