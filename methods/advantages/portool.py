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
from banyan.credit.grove import Grove, plant
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
        grove = plant(group, self.steps)  # γ counts actions, not scores inside them
        path_L = np.zeros(len(grove.rewards_L))
        path_L[grove.scored_L] = stats.standardised(
            grove.rewards_L[grove.scored_L], epsilon=self.epsilon
        )
        fork_S = stats.standardised(self.rewards(grove), grove.sibling_S, epsilon=self.epsilon)
        value_S = self.trajectory * grove.mean_rows(path_L[grove.rows[0]]) + self.fork * fork_S
        return grove.node_valued(np.where(grove.prompt_S, 0.0, value_S))

    def rewards(self, grove: Grove) -> Floats:
        """Return R(s) of each step."""
        leaf_R, step_R = grove.rows
        turn_S = _turns(grove)
        left_R = turn_S[grove.step_L[leaf_R]] - turn_S[step_R]
        return_R = self.gamma ** left_R.astype(np.float64) * grove.rewards_L[leaf_R]
        if self.join == "mean":
            return grove.mean_rows(return_R) + self._format(grove)
        best_S = np.full(len(grove.steps), -np.inf)
        np.maximum.at(best_S, step_R, return_R)
        return best_S + self._format(grove)

    def _format(self, grove: Grove) -> Floats:
        if not self.format:
            return np.zeros(len(grove.steps))
        remedy = "give each segment the number, or leave the setting `format` out"
        values = grove.needed(self.format, "portool", remedy)
        for value in values:
            if isinstance(value, str) and value:
                raise InvalidInput(f"portool needs a number as {self.format!r}, got {value!r}")
        return np.array([v if isinstance(v, int | float) else 0.0 for v in values], np.float64)


def _turns(grove: Grove) -> Ints:
    """Return t, the number of steps with an action on the path down to each step."""
    turn_S = (grove.trained_S > 0).astype(np.int64)
    for index, above in enumerate(grove.above_S):  # parents come first
        turn_S[index] += turn_S[above] if above >= 0 else 0
    return turn_S
