"""branch-depth: leaf rewards fused upwards, then standardised among branches of equal depth.

Paper: BranchGRPO (Li et al. 2025, arXiv 2509.06040), for diffusion models
Formula: A = (R − mean) / (std + 1e-8) among branches with as many forks above
Left out: pruning of edges in the gradient pass

`fusion: mean`: a branch is worth the mean reward of the leaves below. `fusion: likely`: the mean of
    its children weighted by softmax(sharpness · mean log-prob of the child's tokens); a path that
    ends where others go on is a child with log-prob 0. The sample std is over the branches of the
    same tree (`peers: group`: of all its trees); alone at its depth or without a spread a branch
    has 0. A continuation without a fork has its branch's advantage. `most` bounds |A|; 0 for no
    bound. Any two different values at a depth of two give ±0.7071: the scale is lost there.
"""

from dataclasses import dataclass

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Floats
from banyan.credit.steps import BRANCHES
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks

_TINY = 1e-8


@dataclass(frozen=True)
class BranchDepth:
    """Settings.

    fusion: mean or likely
    sharpness: factor of the mean log-probs in `likely`
    peers: tree or group
    most: bound of |A|; 0 for none
    """

    fusion: str = "mean"
    sharpness: float = 1.0
    peers: str = "tree"
    most: float = 0.0

    def __post_init__(self) -> None:
        checks.one_of("fusion", self.fusion, ("mean", "likely"))
        checks.within("sharpness", self.sharpness, 0, 1000)
        checks.one_of("peers", self.peers, ("tree", "group"))
        checks.within("most", self.most, 0, 1e6)

    @property
    def needs_logprobs(self) -> bool:
        """True if values depend on the behaviour log-probs."""
        return self.fusion == "likely"

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per branch."""
        reason = groups.lesson_missing(groups.rewards_of(group))
        if reason:
            return groups.nothing(group, reason)
        arrays = group_arrays(group, BRANCHES)
        reward_L = np.where(arrays.scored_L, arrays.rewards_L, 0.0)
        value_S = (
            arrays.mean_leaves(reward_L) if self.fusion == "mean" else self.fused(arrays, reward_L)
        )
        return arrays.node_valued(self._by_depth(arrays, value_S))

    def _by_depth(self, arrays: GroupArrays, value_S: Floats) -> Floats:
        tree_S = arrays.tree_S if self.peers == "tree" else np.zeros(len(value_S), np.int64)
        found_S = stats.standardised(value_S, stats.labels_of(tree_S, arrays.rank_S), epsilon=_TINY)
        if self.most:
            found_S = np.clip(found_S, -self.most, self.most)
        return np.where(arrays.prompt_S, 0.0, found_S)

    def fused(self, arrays: GroupArrays, reward_L: Floats) -> Floats:
        """Return R of each branch, from the leaves up, children weighted by likelihood."""
        score_S = self.sharpness * _mean_logprobs(arrays)
        ends = arrays.step_L[arrays.scored_L]
        follows = np.flatnonzero(~arrays.prompt_S)
        # The largest score among the successors of a step is subtracted: exp may overflow.
        most_S = np.full(len(score_S), -np.inf)
        most_S[ends] = 0.0
        np.maximum.at(most_S, arrays.above_S[follows], score_S[follows])
        weight_S = np.exp(
            score_S - most_S[arrays.parent_S], where=~arrays.prompt_S, out=np.ones(len(score_S))
        )
        end_S = np.exp(-np.maximum(most_S, 0.0))
        total_S, mass_S = np.zeros(len(arrays.steps)), np.zeros(len(arrays.steps))
        np.add.at(total_S, ends, end_S[ends] * reward_L[arrays.scored_L])
        np.add.at(mass_S, ends, end_S[ends])
        for rank in range(int(arrays.rank_S.max(initial=0)), 0, -1):
            here = np.flatnonzero(arrays.rank_S == rank)
            np.add.at(total_S, arrays.above_S[here], weight_S[here] * total_S[here] / mass_S[here])
            np.add.at(mass_S, arrays.above_S[here], weight_S[here])
        return total_S / mass_S


def _mean_logprobs(arrays: GroupArrays) -> Floats:
    """Return the mean behaviour log-prob of each branch's sampled tokens; 0 without any."""
    sums = [
        sum(float(n.logprobs_T.sum(dtype=np.float64)) for n in s.nodes if n.trained)
        for s in arrays.steps
    ]
    return np.asarray(np.array(sums) / np.maximum(arrays.trained_S, 1))
