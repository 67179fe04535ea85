"""mars2: programs of one search tree, their rewards shaped by parent and siblings.

Paper: MARS², arXiv 2604.14564
Formula: A = (r' − mean) / (std + 1e-9), r' = r + α·(r − (1 − β)·r_parent − β·mean of siblings)

A node is a step with a reward of its own: a program, with its repairs below it. The siblings are
the other children of the same parent. If parent or siblings are missing, the baseline is the other
alone; without both, r' = r. `parent: shaped` uses the parent's r', as the published code does by
working in place; `raw` its r. Mean and std are over all nodes of the tree, whatever model wrote
them. With `agent`, only the nodes whose attribute `agent` has that value are credited: several
models grow one tree, and each learns from its own nodes.
"""

from dataclasses import dataclass

import numpy as np

from banyan import facts
from banyan.credit import stats
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Bools, Floats, Ints
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks

_TINY = 1e-9
_REWARD = "score every program: its segment's reward, or the leaf's where a path ends"
_AGENT = "name the model that wrote it in the segment's attribute `agent`, or leave the setting out"


@dataclass(frozen=True)
class Mars2:
    """Settings.

    alpha, beta: α and β
    parent: reward of the parent that counts: shaped or raw
    agent: writer whose nodes are credited; empty for all
    """

    alpha: float = 0.5
    beta: float = 0.5
    parent: str = "shaped"
    agent: str = ""

    def __post_init__(self) -> None:
        checks.within("alpha", self.alpha, 0, 10)
        checks.within("beta", self.beta, 0, 1)
        checks.one_of("parent", self.parent, ("shaped", "raw"))
        checks.word("agent", self.agent)

    @property
    def needs(self) -> frozenset[str]:
        """Rewards on all nodes, and their writers if only one is credited."""
        return frozenset({facts.STEPS} | ({facts.attribute("agent")} if self.agent else set()))

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per node, 0 for those of other agents."""
        arrays = group_arrays(group, rewarded=True)
        reward_S = _rewards(arrays)
        shaped_S = self._shaped(arrays, reward_S)
        value_S = np.zeros(len(reward_S))
        own_S = ~arrays.prompt_S
        value_S[own_S] = stats.standardised(shaped_S[own_S], arrays.tree_S[own_S], epsilon=_TINY)
        return arrays.node_valued(np.where(self._mine(arrays), value_S, 0.0))

    def _shaped(self, arrays: GroupArrays, reward_S: Floats) -> Floats:
        # Programs of other trees are no siblings, unlike in arrays.sibling_S.
        sibling_S = stats.labels_of(arrays.above_S)
        count_S = stats.sizes(sibling_S)
        total_S = stats.means(reward_S, sibling_S) * count_S
        others_S = (total_S - reward_S) / np.maximum(count_S - 1, 1)
        if self.parent == "raw":
            return self._step(
                arrays, reward_S=reward_S, parent_S=reward_S, others_S=others_S, count_S=count_S
            )
        shaped_S = reward_S
        for rank in range(1, int(arrays.rank_S.max(initial=0)) + 1):
            fresh_S = self._step(
                arrays, reward_S=reward_S, parent_S=shaped_S, others_S=others_S, count_S=count_S
            )
            shaped_S = np.where(arrays.rank_S == rank, fresh_S, shaped_S)
        return shaped_S

    def _step(
        self,
        arrays: GroupArrays,
        reward_S: Floats,
        parent_S: Floats,
        others_S: Floats,
        count_S: Ints,
    ) -> Floats:
        first_S = arrays.prompt_S[arrays.parent_S]
        above_S = parent_S[arrays.parent_S]
        both_S = (1 - self.beta) * above_S + self.beta * others_S
        only_S = np.where(first_S, np.where(count_S > 1, others_S, reward_S), above_S)
        base_S = np.where(~first_S & (count_S > 1), both_S, only_S)
        return np.asarray(reward_S + self.alpha * (reward_S - base_S))

    def _mine(self, arrays: GroupArrays) -> Bools:
        if not self.agent:
            return np.ones(len(arrays.steps), np.bool_)
        return np.asarray(
            [value == self.agent for value in arrays.needed("agent", "mars2", _AGENT)], np.bool_
        )


def _rewards(arrays: GroupArrays) -> Floats:
    """Return the reward of each node: its own, or that of the leaf that it ends.

    Raises InvalidInput if a node has none.
    """
    reward_S = np.where(arrays.prompt_S, 0.0, arrays.reward_S)
    reward_S[arrays.step_L[arrays.scored_L]] = arrays.rewards_L[arrays.scored_L]
    missing = np.flatnonzero(np.isnan(reward_S))
    if len(missing):
        raise arrays.lacks(int(missing[0]), "mars2 needs a reward on every node of a tree", _REWARD)
    return reward_S
