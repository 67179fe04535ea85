"""rose: the gain of value along a branch, and a discount for right but long answers.

Paper: Zhao et al. 2026, ROSE, arXiv 2601.05053
Formula: A(n) = V(n) − V(parent); with a length term A − |A|·(1 − ((L_s − k) / (L − k))^λ)
Left out: merging of all forks at the same offset, as in the published code

A branch is a run between two forks: neither a tool's answer nor a cut parts it. V(n) is the mean
reward of the scored leaves at or below a branch, so the advantages of the branches along a path add
up to R − V(root), the root being the group's prompt. Values belong to places of the tree, not to
offsets.

The length term (`length_penalty` λ > 0) is among leaves with |R| > 1e-6, at least two of them, the
shortest with L_s sampled tokens; a leaf of L > L_s tokens that leaves it after k tokens has the
discount on the part that it does not share with it. A branch that several paths share gets the mean
over them. Of several shortest leaves the one that shares the most counts.
"""

from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Floats
from banyan.credit.steps import BRANCHES
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks

_RIGHT = 1e-6


@dataclass(frozen=True)
class Rose:
    """Settings. length_penalty: exponent of the length term; 0 for none."""

    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        checks.within("length_penalty", self.length_penalty, 0, 100)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per branch."""
        reason = groups.lesson_missing(groups.rewards_of(group))
        if reason:
            return groups.nothing(group, reason)
        arrays = group_arrays(group, BRANCHES)
        value_S = arrays.mean_leaves(np.where(arrays.scored_L, arrays.rewards_L, 0.0))
        gain_S = value_S - value_S[arrays.parent_S]
        return arrays.node_valued(
            gain_S - np.abs(gain_S) * self._discount(arrays) if self.length_penalty else gain_S
        )

    def _discount(self, arrays: GroupArrays) -> Floats:
        """Return the mean of f over each step's paths; 0 for steps on a shortest path."""
        right_L = arrays.scored_L & (np.abs(np.nan_to_num(arrays.rewards_L)) > _RIGHT)
        if right_L.sum() < 2:
            return np.zeros(len(arrays.steps))
        length_L = np.where(arrays.scored_L, arrays.end_S[arrays.step_L], 0)
        shortest = int(length_L[right_L].min())
        leaf_R, step_R = arrays.rows
        shared_S = arrays.below((right_L & (length_L == shortest))[leaf_R].astype(np.float64)) > 0
        shared_S |= arrays.prompt_S
        left_L = np.zeros(len(length_L))
        np.maximum.at(left_L, leaf_R, np.where(shared_S, arrays.end_S, 0)[step_R])
        share_L = longer(length_L, shortest, left_L, self.length_penalty) * right_L
        return arrays.mean_rows(share_L[leaf_R] * ~shared_S[step_R])


def longer(length_L: Floats, shortest: int, left_L: Floats, power: float) -> Floats:
    """Return f, the share of its advantage that a path loses against the shortest one.

    length_L: tokens of the paths
    shortest: tokens of the shortest path
    left_L: tokens that each path shares with it
    power: exponent λ
    """
    over_L = length_L > shortest
    ratio_L = np.divide(
        shortest - left_L, length_L - left_L, out=np.ones(len(left_L)), where=over_L
    )
    return np.where(over_L, 1 - np.maximum(ratio_L, 0.0) ** power, 0.0)
