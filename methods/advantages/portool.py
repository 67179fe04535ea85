"""portool: a step's reward against its siblings', blended with its trajectories'.

Paper: PORTool, arXiv 2510.26020
Formula: A(s) = trajectory · A_traj + fork · A_fork, R(s) = mean_k γ^{T_k − t} · R_k + F(s)
Left out: the published weights of the two terms, which are unknown; here both are 1

R(s) is the mean (or max) over the paths k through step s, the t-th of T_k. F is a format score of
the step: the attribute that `format` names, 0 without a name. A_fork = (R(s) − mean) / (std + ε)
among the steps that follow the same step (the first steps of all trees follow the group's prompt);
0 for an only child or without a spread. A_traj = GRPO over the paths, the mean over those through
s. With `fork: 0` every step has the mean of its leaves' GRPO advantages. Where γ < 1, paths of
unequal length with equal rewards differ in R(s): A_traj is 0 and A_fork is not; of right paths the
one that ends sooner is worth more.
"""

from dataclasses import dataclass

import numpy as np

from banyan import facts
from banyan.credit import stats
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Floats, Ints
from banyan.credit.steps import SEGMENTS, TURNS
from banyan.errors import InvalidInput
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks


@dataclass(frozen=True)
class PorTool:
    """Settings.

    gamma: discount
    trajectory, fork: weights of the two terms
    join: combination of a step's rewards: mean or max
    format: attribute that holds F; empty for none
    steps: definition of a step: turns or segments
    epsilon: number added to divisors
    """

    gamma: float = 0.95
    trajectory: float = 1.0
    fork: float = 1.0
    join: str = "mean"
    format: str = ""
    steps: str = TURNS
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        checks.within("gamma", self.gamma, 0, 1)
        checks.within("trajectory", self.trajectory, 0, 100)
        checks.within("fork", self.fork, 0, 100)
        checks.one_of("join", self.join, ("mean", "max"))
        checks.word("format", self.format)
        checks.one_of("steps", self.steps, (TURNS, SEGMENTS))
        checks.epsilon(self.epsilon)

    @property
    def needs(self) -> frozenset[str]:
        """The format score, if named."""
        return frozenset({facts.attribute(self.format)} if self.format else ())

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per step."""
        arrays = group_arrays(group, self.steps)  # γ counts actions, not scores inside them
        path_L = np.zeros(len(arrays.rewards_L))
        path_L[arrays.scored_L] = stats.standardised(
            arrays.rewards_L[arrays.scored_L], epsilon=self.epsilon
        )
        fork_S = stats.standardised(self.rewards(arrays), arrays.sibling_S, epsilon=self.epsilon)
        value_S = self.trajectory * arrays.mean_rows(path_L[arrays.rows[0]]) + self.fork * fork_S
        return arrays.node_valued(np.where(arrays.prompt_S, 0.0, value_S))

    def rewards(self, arrays: GroupArrays) -> Floats:
        """Return R(s) of each step."""
        leaf_R, step_R = arrays.rows
        turn_S = _turns(arrays)
        left_R = turn_S[arrays.step_L[leaf_R]] - turn_S[step_R]
        return_R = self.gamma ** left_R.astype(np.float64) * arrays.rewards_L[leaf_R]
        if self.join == "mean":
            return arrays.mean_rows(return_R) + self._format(arrays)
        best_S = np.full(len(arrays.steps), -np.inf)
        np.maximum.at(best_S, step_R, return_R)
        return best_S + self._format(arrays)

    def _format(self, arrays: GroupArrays) -> Floats:
        if not self.format:
            return np.zeros(len(arrays.steps))
        remedy = "give each segment the number, or leave the setting `format` out"
        values = arrays.needed(self.format, "portool", remedy)
        for value in values:
            if isinstance(value, str) and value:
                raise InvalidInput(f"portool needs a number as {self.format!r}, got {value!r}")
        return np.array([v if isinstance(v, int | float) else 0.0 for v in values], np.float64)


def _turns(arrays: GroupArrays) -> Ints:
    """Return t, the number of steps with an action on the path down to each step."""
    turn_S = (arrays.trained_S > 0).astype(np.int64)
    for index, above in enumerate(arrays.above_S):  # parents come first
        turn_S[index] += turn_S[above] if above >= 0 else 0
    return turn_S
