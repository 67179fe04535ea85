"""GRPO: a leaf's reward against the mean of its group, over the group's standard deviation.

A_i = (R_i − mean) / (std + epsilon) with the sample standard deviation over all scored leaves of all trees of the group
(Shao et al. 2024, arXiv 2402.03300). `scale: none` leaves the division out (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783).
A group with one scored leaf, or without any spread, teaches nothing: all its advantages are 0 and it says so.
"""

from dataclasses import dataclass

import numpy as np

from banyan.plugins import Advantages, GroupTrees
from services.learner.advantages import group as groups


@dataclass(frozen=True)
class Grpo:
    """Settings: what the difference is divided by, and what keeps that division finite."""

    scale: str = "std"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.scale not in ("std", "none"):
            raise ValueError(f"scale {self.scale!r} must be std or none")
        if not 0 <= self.epsilon < 1:
            raise ValueError(f"epsilon {self.epsilon!r} must lie in [0, 1)")

    def estimate(self, group: GroupTrees) -> Advantages:
        """One advantage per scored leaf."""
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L)
        if reason:
            return groups.nothing(group, reason)
        scored_L = rewards_L[np.isfinite(rewards_L)]
        divisor = scored_L.std(ddof=1) + self.epsilon if self.scale == "std" else 1.0
        return Advantages(groups.by_tree(group, (rewards_L - scored_L.mean()) / divisor))
