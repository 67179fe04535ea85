"""HGPO: steps compared in nested groups, by how many of the last states agree (ICLR 2026).

For k = 1 .. history + 1, a step's k-th group is the rows of the group's paths whose last k states, its own included, are the
same (a path shorter than that has no k-th group). In each: R_t against the mean, over (population std + 1e-6) with
`scale: mean_std`. A = Σ w_k a_k / (Σ w_k + 1e-6) over the a_k that are not 0, w_k = (k + 1)^power: longer agreement is
trusted more. `episode_term` adds GiGPO's episode advantage as k = 0. A step that no other matches has 0. States and shared
steps: see episodes.py. Where γ < 1, paths of unequal length with equal rewards at their ends differ in R_t, and A is not 0.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from banyan.credit import stats
from banyan.credit.grove import plant
from banyan.credit.stats import Floats, Ints
from banyan.credit.steps import SEGMENTS, TURNS
from banyan.plugins import Advantages, GroupTrees
from banyan.plugins import checks as shared
from methods.advantages import checks
from methods.advantages.episodes import Episodes, episodes, normalised
from methods.advantages.gigpo import spread


@dataclass(frozen=True)
class Hgpo:
    """Settings: discount, how many states before its own count, the weights' power, scale, the episode term, the step."""

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
        """One advantage per step."""
        grove = plant(group, self.steps, rewarded=True)
        seen = episodes(grove, self.gamma)
        return grove.node_valued(spread(grove, seen, self.values(seen)))

    def values(self, seen: Episodes) -> Floats:
        """A of each row."""
        total_R, weight_R = np.zeros(len(seen.leaf_R)), np.zeros(len(seen.leaf_R))
        if self.episode_term:
            first_R = normalised(seen.score_R, None, self.scale, ddof=1)
            total_R, weight_R = first_R, (first_R != 0).astype(np.float64)
        context_R, long_R = seen.state_R, np.ones(len(seen.leaf_R), np.bool_)
        for k in range(1, self.history + 2):
            if k > 1:
                context_R, long_R = _longer(seen, context_R, long_R)
            value_R = np.zeros(len(total_R))
            value_R[long_R] = normalised(
                seen.return_R[long_R], context_R[long_R], self.scale, ddof=0
            )
            weight = (k + 1.0) ** self.power
            total_R, weight_R = total_R + weight * value_R, weight_R + weight * (value_R != 0)
        return total_R / (weight_R + 1e-6)


def _longer(seen: Episodes, context_R: Ints, long_R: np.ndarray) -> tuple[Ints, np.ndarray]:
    """Labels of the last k + 1 states from those of the last k, and which rows have as many."""
    before = np.arange(len(context_R)) - 1
    follows_R = np.zeros(len(context_R), np.bool_)
    follows_R[1:] = seen.leaf_R[1:] == seen.leaf_R[:-1]
    long_R = follows_R & long_R[before] if len(long_R) else long_R
    earlier_R = np.where(long_R, context_R[before], -1) if len(long_R) else context_R
    return stats.labels_of(earlier_R, seen.state_R), long_R
