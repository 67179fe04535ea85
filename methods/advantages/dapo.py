"""dapo: GRPO with a penalty on overlong answers, and dynamic sampling.

Paper: Yu et al. 2025, DAPO, arXiv 2503.14476
Formula: reward − factor · clip((length − (longest − buffer)) / buffer, 0, 1)
Left out: the wider clip range and the token mean, which are settings of the loss

Lengths are in sampled tokens, which the learner knows: a scorer sees text. Dynamic sampling,
leaving out groups whose leaves are all right or all wrong, goes by the scores BEFORE the penalty:
those groups teach nothing although lengths would make their shaped rewards differ. A batch consumes
them with a reason and packs nothing of them.
"""

from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.group_arrays import group_arrays
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks, overlong


@dataclass(frozen=True)
class Dapo:
    """Settings.

    longest: longest answer, sampled tokens
    buffer: tokens before it in which the penalty grows; 0 for no penalty
    factor: largest penalty
    dynamic_sampling: whether constant groups are left out
    epsilon: GRPO's
    """

    longest: int = 0
    buffer: int = 0
    factor: float = 1.0
    dynamic_sampling: bool = True
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        overlong.check(self)
        checks.flag("dynamic_sampling", self.dynamic_sampling)
        checks.epsilon(self.epsilon)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per scored leaf."""
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L) if self.dynamic_sampling else ""
        if reason:
            return groups.nothing(group, reason)
        arrays = group_arrays(group)
        if self.longest:
            lengths_L = arrays.along(arrays.trained_S.astype(np.float64))
            over_L = overlong.penalty(lengths_L, self.longest, self.buffer, self.factor)
            rewards_L = rewards_L + over_L
        value_L = np.zeros(len(rewards_L))
        value_L[arrays.scored_L] = stats.standardised(
            rewards_L[arrays.scored_L], epsilon=self.epsilon
        )
        return arrays.leaf_valued(value_L)
