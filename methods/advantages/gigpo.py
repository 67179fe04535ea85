"""gigpo: whole episodes against each other, and steps that were taken in the same state.

Paper: GiGPO, arXiv 2505.10978
Formula: A = A_E + step_weight · A_S, A_S over R_t = r_t + γ · R_{t+1} of rows of equal state

A_E compares the episode's total reward, over all rows (steps of paths: long episodes weigh more),
or with `rows: episodes` once a path. A_S is 0 for a row alone in its state, and A_E for one alone
in its group, where the published code leaves R: nothing compares it. `scale: mean` (default) or
`mean_std`, over (sample std + 1e-6). `alike` below 1: states whose texts have that difflib ratio
are one (published: 0.95, search 0.9). States and shared steps: see episodes.py. Where γ < 1, paths
of unequal length with equal rewards at their ends differ in R_t: A_E is 0 and A_S is not; of right
paths the shorter is worth more.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Floats
from banyan.credit.steps import SEGMENTS, TURNS
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks
from methods.advantages.episodes import Episodes, episodes, normalised


@dataclass(frozen=True)
class GiGpo:
    """Settings.

    gamma: discount
    step_weight: weight of the step term
    scale: mean or mean_std
    rows: rows of the episode term: steps or episodes
    steps: definition of a step: turns or segments
    alike: likeness from which states are one
    """

    gamma: float = 0.95
    step_weight: float = 1.0
    scale: str = "mean"
    rows: str = "steps"
    steps: str = TURNS
    alike: float = 1.0

    by_steps: ClassVar[bool] = True
    """Rewards of places inside a path are those of its steps."""

    def __post_init__(self) -> None:
        checks.within("gamma", self.gamma, 0, 1)
        checks.within("step_weight", self.step_weight, 0, 100)
        checks.one_of("scale", self.scale, ("mean", "mean_std"))
        checks.one_of("rows", self.rows, ("steps", "episodes"))
        checks.one_of("steps", self.steps, (TURNS, SEGMENTS))
        checks.within("alike", self.alike, 0, 1)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per step."""
        arrays = group_arrays(group, self.steps, rewarded=True)
        rows = episodes(arrays, self.gamma, self.alike)
        step_R = normalised(rows.return_R, rows.state_R, self.scale, ddof=1)
        value_R = self._episode(rows) + self.step_weight * step_R
        return arrays.node_valued(spread(arrays, rows, value_R))

    def _episode(self, rows: Episodes) -> Floats:
        if self.rows == "steps":
            return normalised(rows.score_R, None, self.scale, ddof=1)
        _, first, back = np.unique(rows.leaf_R, return_index=True, return_inverse=True)
        return normalised(rows.score_R[first], None, self.scale, ddof=1)[back]


def spread(arrays: GroupArrays, rows: Episodes, value_R: Floats) -> Floats:
    """Return the mean over each step's rows; 0 for steps without an action."""
    total_S = np.bincount(rows.step_R, value_R, len(arrays.steps))
    return np.asarray(
        total_S / np.maximum(np.bincount(rows.step_R, minlength=len(arrays.steps)), 1)
    )
