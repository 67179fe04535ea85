"""xrpo: GRPO with a bonus for right answers that were unlikely.

Paper: XRPO, arXiv 2510.06672
Formula: A⁺ = A + min(max(novelty · (1 − η), 0), bound · A), η = exp(s − mean of s)

s is the mean behaviour log-prob of a path's sampled tokens; its mean is over the group. The bonus
is for leaves that are right and above their group's mean; all others keep A.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Bools, Floats
from banyan.plugins import Advantages, GroupTrees
from banyan.plugins import checks as shared
from methods.advantages import checks


@dataclass(frozen=True)
class Xrpo:
    """Settings.

    novelty: weight of the bonus
    bound: bound of the bonus, as a share of A
    right: reward from which an answer is right
    epsilon: GRPO's
    """

    novelty: float = 2.5
    bound: float = 0.5
    right: float = 0.5
    epsilon: float = 1e-6
    needs_logprobs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.within("novelty", self.novelty, 0, 1000)
        checks.within("bound", self.bound, 0, 10)
        shared.finite(self, ("right",))
        checks.epsilon(self.epsilon)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per scored leaf."""
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L)
        if reason:
            return groups.nothing(group, reason)
        arrays = group_arrays(group)
        scored = arrays.scored_L
        value_L = np.zeros(len(rewards_L))
        base = stats.standardised(rewards_L[scored], epsilon=self.epsilon)
        likely = _mean_logprobs(arrays)[scored]
        value_L[scored] = novel(
            base, likely, rewards_L[scored] >= self.right, novelty=self.novelty, bound=self.bound
        )
        return arrays.leaf_valued(value_L)


def novel(
    value_L: Floats, logprob_L: Floats, right_L: Bools, novelty: float = 2.5, bound: float = 0.5
) -> Floats:
    """Return A⁺ from advantages, mean log-probs, and the mask of right answers."""
    unlikely_L = 1 - np.exp(logprob_L - logprob_L.mean())
    bonus_L = np.minimum(np.maximum(novelty * unlikely_L, 0.0), bound * value_L)
    return np.where(right_L & (value_L > 0), value_L + bonus_L, value_L)


def _mean_logprobs(arrays: GroupArrays) -> Floats:
    """Return the mean log-prob of each path's sampled tokens; 0 for a path without any."""
    sums = [
        sum(float(n.logprobs_T.sum(dtype=np.float64)) for n in s.nodes if n.trained)
        for s in arrays.steps
    ]
    count_L = arrays.along(arrays.trained_S.astype(np.float64))
    return np.asarray(arrays.along(np.array(sums, np.float64)) / np.maximum(count_L, 1))
