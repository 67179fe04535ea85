"""XRPO: GRPO, with a bonus for right answers that were unlikely (arXiv 2510.06672, card 20).

s = mean behaviour log-prob of a path's sampled tokens, η = exp(s − mean of s over the group), and for a leaf that is right
and above its group's mean, A⁺ = A + min(max(novelty · (1 − η), 0), bound · A). All others keep A.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.grove import Grove, plant
from banyan.credit.stats import Bools, Floats
from banyan.plugins import Advantages, GroupTrees
from banyan.plugins import checks as shared
from methods.advantages import checks


@dataclass(frozen=True)
class Xrpo:
    """Settings: weight and bound of the bonus, and the reward from which an answer is right."""

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
        """One advantage per scored leaf."""
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L)
        if reason:
            return groups.nothing(group, reason)
        grove = plant(group)
        scored = grove.scored_L
        value_L = np.zeros(len(rewards_L))
        base = stats.standardised(rewards_L[scored], epsilon=self.epsilon)
        likely = _mean_logprobs(grove)[scored]
        value_L[scored] = novel(
            base, likely, rewards_L[scored] >= self.right, self.novelty, self.bound
        )
        return grove.leaf_valued(value_L)


def novel(
    value_L: Floats, logprob_L: Floats, right_L: Bools, novelty: float = 2.5, bound: float = 0.5
) -> Floats:
    """A⁺ of advantages, mean log-probs, and which answers are right."""
    unlikely_L = 1 - np.exp(logprob_L - logprob_L.mean())
    bonus_L = np.minimum(np.maximum(novelty * unlikely_L, 0.0), bound * value_L)
    return np.where(right_L & (value_L > 0), value_L + bonus_L, value_L)


def _mean_logprobs(grove: Grove) -> Floats:
    """Mean log-prob of each path's sampled tokens; 0 for a path without any."""
    sums = [
        sum(float(n.logprobs_T.sum(dtype=np.float64)) for n in s.nodes if n.trained)
        for s in grove.steps
    ]
    count_L = grove.along(grove.trained_S.astype(np.float64))
    return np.asarray(grove.along(np.array(sums, np.float64)) / np.maximum(count_L, 1))
