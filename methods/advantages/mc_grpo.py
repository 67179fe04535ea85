"""mc-grpo: rewards against their median, for few rollouts.

Paper: MC-GRPO, arXiv 2601.22582
Formula: A_i = (R_i − med) / (max(MAD, floor · range) + epsilon), times n / z where not 0

Of n = G + 1 rewards, med is the lower median, MAD the lower median of |R − med|, z the number of
advantages that are not 0. One leaf that has the median, the pivot, takes no part: G leaves carry
gradient.

Of right-or-wrong rewards MAD is 0, and A without a floor is of the order 1 / epsilon, as in the
published code (`floor: 0`): a KL or entropy term beside it has no weight, and every step is
clipped. With a floor the mean of |A| over such a group is 1 / floor; that of GRPO is 2 √(p (1 −
p)), 1 at most, which the default follows. MAD is never more than half of the range, so from a floor
of 0.5 on the range alone is the scale. Rewards of many values allow a smaller floor, such as 0.1,
for their MAD to count. The metric `advantage_max` shows the result, and `banyan advantages` warns
of thousands.

Of several leaves with the median the pivot is the first in the first tree, by tree id and place.
"""

from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.stats import EQUAL, Floats, Ints
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks

_ZERO = 1e-6


@dataclass(frozen=True)
class McGrpo:
    """Settings.

    epsilon: number added to the divisor
    floor: least MAD as a share of the rewards' range
    """

    epsilon: float = 1e-3
    floor: float = 1.0

    def __post_init__(self) -> None:
        checks.within("epsilon", self.epsilon, 1e-12, 1)
        checks.within("floor", self.floor, 0, 1)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per scored leaf but the pivot, which has nan."""
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L)
        if reason:
            return groups.nothing(group, reason)
        scored = np.flatnonzero(np.isfinite(rewards_L))
        values_L = np.full(len(rewards_L), np.nan)
        values_L[scored] = centred_on_median(rewards_L[scored], self.epsilon, self.floor)
        values_L[self._pivot(group, rewards_L, scored)] = np.nan
        return groups.leaf_valued(group, values_L)

    def _pivot(self, group: GroupTrees, rewards_L: Floats, scored: Ints) -> int:
        median = stats.lower_median(rewards_L[scored])
        places = [(view.tree.tree_id, node) for view in group.trees for node in view.leaf_node_L]
        return min((int(i) for i in scored if rewards_L[i] == median), key=places.__getitem__)


def centred_on_median(reward_L: Floats, epsilon: float, floor: float = 0.0) -> Floats:
    """Return (R − median) / (MAD + epsilon), those that are not 0 times n over their number."""
    apart_L = reward_L - stats.lower_median(reward_L)
    apart_L = np.where(
        np.abs(apart_L) > EQUAL * max(1.0, float(np.abs(reward_L).max())), apart_L, 0.0
    )
    mad = max(stats.lower_median(np.abs(apart_L)), floor * float(np.ptp(reward_L)))
    value_L = apart_L / (mad + epsilon)
    moved_L = np.abs(value_L) > _ZERO
    return np.where(moved_L, value_L * len(value_L) / max(int(moved_L.sum()), 1), value_L)
