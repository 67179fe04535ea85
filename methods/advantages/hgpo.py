"""hgpo: steps compared in nested groups, by the number of last states that agree.

Paper: HGPO, ICLR 2026
Formula: A = Σ_k w_k a_k / (Σ_k w_k + 1e-6) over a_k ≠ 0, w_k = (k + 1)^power

For k = 1 .. history + 1, a step's k-th group is the rows of the group's paths whose last k states,
its own included, are the same (a path shorter than that has no k-th group). In each, a_k is R_t
against the mean, over (population std + 1e-6) with `scale: mean_std`. Longer agreement is trusted
more. `episode_term` adds GiGPO's episode advantage as k = 0. A step that matches no other has 0.
States and shared steps: see episodes.py. Where γ < 1, paths of unequal length with equal rewards at
their ends differ in R_t, and A is not 0.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from banyan.credit import stats
from banyan.credit.group_arrays import group_arrays
from banyan.credit.stats import Floats, Ints
from banyan.credit.steps import SEGMENTS, TURNS
from banyan.plugins import Advantages, GroupTrees
from banyan.plugins import checks as shared
from methods.advantages import checks
from methods.advantages.episodes import Episodes, episodes, normalised
from methods.advantages.gigpo import spread


@dataclass(frozen=True)
class Hgpo:
    """Settings.

    gamma: discount
    history: number of states before a step's own that count
    power: power of the weights
    scale: mean or mean_std
    episode_term: whether episodes are compared, too
    steps: definition of a step: turns or segments
    """

    gamma: float = 0.95
    history: int = 2
    power: float = 1.0
    scale: str = "mean_std"
    episode_term: bool = False
    steps: str = TURNS

    by_steps: ClassVar[bool] = True
    """Rewards of places inside a path are those of its steps."""

    def __post_init__(self) -> None:
        checks.within("gamma", self.gamma, 0, 1)
        shared.whole(self, ("history",), 0, 100)
        checks.within("power", self.power, 0, 10)
        checks.one_of("scale", self.scale, ("mean", "mean_std"))
        checks.flag("episode_term", self.episode_term)
        checks.one_of("steps", self.steps, (TURNS, SEGMENTS))

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per step."""
        arrays = group_arrays(group, self.steps, rewarded=True)
        rows = episodes(arrays, self.gamma)
        return arrays.node_valued(spread(arrays, rows, self.values(rows)))

    def values(self, rows: Episodes) -> Floats:
        """Return A of each row."""
        total_R, weight_R = np.zeros(len(rows.leaf_R)), np.zeros(len(rows.leaf_R))
        if self.episode_term:
            first_R = normalised(rows.score_R, None, self.scale, ddof=1)
            total_R, weight_R = first_R, (first_R != 0).astype(np.float64)
        context_R, long_R = rows.state_R, np.ones(len(rows.leaf_R), np.bool_)
        for k in range(1, self.history + 2):
            if k > 1:
                context_R, long_R = _longer(rows, context_R, long_R)
            value_R = np.zeros(len(total_R))
            value_R[long_R] = normalised(
                rows.return_R[long_R], context_R[long_R], self.scale, ddof=0
            )
            weight = (k + 1.0) ** self.power
            total_R, weight_R = total_R + weight * value_R, weight_R + weight * (value_R != 0)
        return total_R / (weight_R + 1e-6)


def _longer(rows: Episodes, context_R: Ints, long_R: np.ndarray) -> tuple[Ints, np.ndarray]:
    """Return labels of the last k + 1 states from those of the last k, and the rows that have
    them."""
    before = np.arange(len(context_R)) - 1
    follows_R = np.zeros(len(context_R), np.bool_)
    follows_R[1:] = rows.leaf_R[1:] == rows.leaf_R[:-1]
    long_R = follows_R & long_R[before] if len(long_R) else long_R
    earlier_R = np.where(long_R, context_R[before], -1) if len(long_R) else context_R
    return stats.labels_of(earlier_R, rows.state_R), long_R
