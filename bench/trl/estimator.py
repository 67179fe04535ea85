"""GRPO on rewards that always vary instead of the scored ones, so that every group teaches."""

from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.plugins import Advantages, GroupTrees
from bench.trl.reward import varied
from methods.advantages.grpo import Grpo


@dataclass(frozen=True)
class Varied(Grpo):
    """Estimator for `optimise.advantage`; answers are scored as usual."""

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per leaf, half of them above 0."""
        reward_L = np.array(varied(len(groups.rewards_of(group))))
        return groups.leaf_valued(group, stats.standardised(reward_L, epsilon=self.epsilon))
