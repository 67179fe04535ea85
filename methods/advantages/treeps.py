"""treeps: process advantages of steps from the outcomes below them.

Paper: TreePS-RAG, arXiv 2601.06922
Formula: A(n) = [V(n) − V(root)] + [V(n) − V(parent)]
Left out: the published normalisation, which is unknown; this is TreeRL's form

V(n) is the mean reward of the leaves at or below a step. `terms: local` keeps the second
difference, `terms: global` the first. The root is the group's prompt. A step is an action with the
environment's answer; the answer is never trained on. So on a path without forks the first step has
2 (R − mean) and each later one R − mean; `local` alone teaches later ones nothing.
"""

from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit.group_arrays import group_arrays
from banyan.credit.steps import SEGMENTS, TURNS
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks


@dataclass(frozen=True)
class TreePS:
    """Settings.

    terms: differences that count: both, local or global
    steps: definition of a step: turns or segments
    """

    terms: str = "both"
    steps: str = TURNS

    def __post_init__(self) -> None:
        checks.one_of("terms", self.terms, ("both", "local", "global"))
        checks.one_of("steps", self.steps, (TURNS, SEGMENTS))

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per step."""
        reason = groups.lesson_missing(groups.rewards_of(group))
        if reason:
            return groups.nothing(group, reason)
        arrays = group_arrays(group, self.steps)
        value_S = arrays.mean_leaves(np.where(arrays.scored_L, arrays.rewards_L, 0.0))
        root = arrays.rewards_L[arrays.scored_L].mean()
        near_S, far_S = value_S - value_S[arrays.parent_S], value_S - root
        return arrays.node_valued(
            {"both": near_S + far_S, "local": near_S, "global": far_S}[self.terms]
        )
