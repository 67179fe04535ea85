"""treepo: a leaf's reward against the mean of each subtree that it lies in.

Paper: Li et al. 2025, TreePO, arXiv 2508.17445
Formula: A_i = mean_j (R_i − mean of the j-th subtree of leaf i)

At depth 0 a leaf is compared with all scored leaves of its group; at each fork below, with those of
the branch that it follows. `average`: A_i is the mean over subtrees; `group_size`: the mean
weighted by the sizes of the subtrees. Depth 0 always counts; a deeper subtree counts only if it
holds more than one scored leaf, and with `require_spread` only if their rewards differ. A segment
that ends without a fork makes no new subtree, so that a segment cut by a policy change alters no
advantage. `whiten` has the batch stage whiten over all trained tokens of the batch, as in the
published recipe.

With `longest` and `buffer` overlong answers lose reward, as in DAPO (Yu et al. 2025, arXiv
2503.14476). Groups that teach nothing are left out by their rewards before that, as the published
filter does: a recipe over-samples by as many groups more in a batch.
"""

from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import EQUAL, Floats
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks, overlong


@dataclass(frozen=True)
class TreePO:
    """Settings.

    weighting: weights of a leaf's comparisons: average or group_size
    require_spread: whether subtrees without a spread are left out
    whiten: whether the batch is whitened
    longest: longest answer, sampled tokens
    buffer: tokens before it in which the penalty grows; 0 for no penalty
    factor: largest penalty
    """

    weighting: str = "average"
    require_spread: bool = False
    whiten: bool = True
    longest: int = 0
    buffer: int = 0
    factor: float = 1.0

    def __post_init__(self) -> None:
        checks.one_of("weighting", self.weighting, ("average", "group_size"))
        checks.flag("require_spread", self.require_spread)
        checks.flag("whiten", self.whiten)
        overlong.check(self)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per scored leaf."""
        reason = groups.lesson_missing(groups.rewards_of(group))
        if reason:
            return groups.nothing(group, reason)
        arrays = group_arrays(group)
        return arrays.leaf_valued(self._values(arrays))

    def _values(self, arrays: GroupArrays) -> Floats:
        reward_L = np.where(arrays.scored_L, arrays.rewards_L, 0.0)
        if self.longest:
            lengths_L = arrays.along(arrays.trained_S.astype(np.float64))
            shorter_L = overlong.penalty(lengths_L, self.longest, self.buffer, self.factor)
            reward_L = np.where(arrays.scored_L, reward_L + shorter_L, 0.0)
        mean_S = arrays.mean_leaves(reward_L)
        size_S = arrays.paths_S.astype(np.float64)
        size_S[arrays.prompt_S] = arrays.scored_L.sum()
        counts_S = self._counting(arrays, reward_L, mean_S)
        weight_S = counts_S * (size_S if self.weighting == "group_size" else 1.0)
        total_L = np.maximum(arrays.along(weight_S), 1.0)
        return np.asarray(reward_L - arrays.along(weight_S * mean_S) / total_L)

    def _counting(self, arrays: GroupArrays, reward_L: Floats, mean_S: Floats) -> Floats:
        counts_S = arrays.parted_S & (arrays.paths_S > 1)
        if self.require_spread:
            leaf_R, step_R = arrays.rows
            apart_R = np.abs(reward_L[leaf_R] - mean_S[step_R])
            widest_S = np.zeros(len(mean_S))
            np.maximum.at(widest_S, step_R, apart_R)
            counts_S &= widest_S > EQUAL * np.maximum(1.0, np.abs(mean_S))
        return (counts_S | arrays.prompt_S).astype(np.float64)
