"""ROSE: what a run of tokens between two forks adds to the value, and a discount for right but long answers
(Zhao et al. 2026, arXiv 2601.05053).

A branch is what lies between two forks: neither a tool's answer nor a cut parts it. V(n) = mean reward of the scored leaves
at or below a branch; on its tokens A(n) = V(n) − V(parent), so that the advantages of the branches along a path add up to
R − V(root), the root being the group's prompt. Values belong to places of the tree, not to offsets: the published code
merges all forks at the same offset. Length term (`length_penalty` λ > 0): among leaves with
|R| > 1e-6, of which there must be two, with the shortest L_s sampled tokens long; for a leaf of L > L_s tokens that leaves
it after k tokens, f = 1 − ((L_s − k) / (L − k))^λ, and A − |A| · f on what it does not share with it. A branch that several
paths share gets the mean over them. Of several shortest leaves that counts which shares the most.
"""

from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit.grove import Grove, plant
from banyan.credit.stats import Floats
from banyan.credit.steps import BRANCHES
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks

_RIGHT = 1e-6


@dataclass(frozen=True)
class Rose:
    """Settings: the exponent of the length term; 0 for none."""

    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        checks.within("length_penalty", self.length_penalty, 0, 100)

    def estimate(self, group: GroupTrees) -> Advantages:
        """One advantage per branch."""
        reason = groups.lesson_missing(groups.rewards_of(group))
        if reason:
            return groups.nothing(group, reason)
        grove = plant(group, BRANCHES)
        value_S = grove.mean_leaves(np.where(grove.scored_L, grove.rewards_L, 0.0))
        gain_S = value_S - value_S[grove.parent_S]
        return grove.node_valued(
            gain_S - np.abs(gain_S) * self._discount(grove) if self.length_penalty else gain_S
        )

    def _discount(self, grove: Grove) -> Floats:
        """Mean over each step's paths of f, where the step is not on a shortest path."""
        right_L = grove.scored_L & (np.abs(np.nan_to_num(grove.rewards_L)) > _RIGHT)
        if right_L.sum() < 2:
            return np.zeros(len(grove.steps))
        length_L = np.where(grove.scored_L, grove.end_S[grove.step_L], 0)
        shortest = int(length_L[right_L].min())
        leaf_R, step_R = grove.rows
        shared_S = grove.below((right_L & (length_L == shortest))[leaf_R].astype(np.float64)) > 0
        shared_S |= grove.prompt_S
        left_L = np.zeros(len(length_L))
        np.maximum.at(left_L, leaf_R, np.where(shared_S, grove.end_S, 0)[step_R])
        share_L = longer(length_L, shortest, left_L, self.length_penalty) * right_L
        return grove.mean_rows(share_L[leaf_R] * ~shared_S[step_R])


def longer(length_L: Floats, shortest: int, left_L: Floats, power: float) -> Floats:
    """f: the share of an advantage that a path of `length` loses against the shortest, which it left after `left` tokens."""
    over_L = length_L > shortest
    ratio_L = np.divide(
        shortest - left_L, length_L - left_L, out=np.ones(len(left_L)), where=over_L
    )
    return np.where(over_L, 1 - np.maximum(ratio_L, 0.0) ** power, 0.0)
