"""TreePO: a leaf's reward against the mean of each subtree that it lies in.

At depth 0 a leaf is compared with all scored leaves of its group; at each fork below, with those of the branch it took:
a_ij = R_i − mean of its j-th subtree. `average`: A_i is the mean of its a_ij; `group_size`: their mean weighted by the
sizes of the subtrees (Li et al. 2025, TreePO). Depth 0 always counts; a deeper subtree counts only if it holds more than
one scored leaf, and with `require_spread` only if their rewards differ. A segment that ends without a fork makes no new
subtree, so that a segment cut by a policy change alters no advantage. `whiten` asks the batch stage to whiten over all
trained tokens of the batch, as the published recipe does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from banyan.plugins import Advantages, GroupTrees
from banyan.view import TreeView
from services.learner.advantages import group as groups


@dataclass(frozen=True)
class TreePO:
    """Settings: how a leaf's comparisons are weighted, which subtrees count, and whether the batch is whitened."""

    weighting: str = "average"
    require_spread: bool = False
    whiten: bool = True

    def __post_init__(self) -> None:
        if self.weighting not in ("average", "group_size"):
            raise ValueError(f"weighting {self.weighting!r} must be average or group_size")

    def estimate(self, group: GroupTrees) -> Advantages:
        """One advantage per scored leaf."""
        rewards_L = groups.rewards_of(group)
        reason = groups.lesson_missing(rewards_L)
        if reason:
            return groups.nothing(group, reason)
        scored_L = rewards_L[np.isfinite(rewards_L)]
        whole = (float(scored_L.mean()), len(scored_L))
        return Advantages(tuple(self._tree(view, whole) for view in group.trees))

    def _tree(self, view: TreeView, whole: tuple[float, int]) -> groups.Floats:
        values_L = np.full(len(view.leaves_L), np.nan)
        for leaf in view.scored_L:
            peers = [whole, *self._subtrees(view, leaf)]
            differences = [view.rewards_L[leaf] - mean for mean, _ in peers]
            sizes = [size for _, size in peers] if self.weighting == "group_size" else None
            values_L[leaf] = np.average(differences, weights=sizes)
        return values_L

    def _subtrees(self, view: TreeView, leaf: int) -> Iterator[tuple[float, int]]:
        """Mean and size of each subtree below the root that the leaf lies in."""
        path = [view.nodes[i] for i in view.path(leaf)]
        for above, node in pairwise(path):
            forked = node.paths != above.paths
            spread = node.reward_sq_sum / node.paths - node.value**2 > 1e-12
            if forked and node.paths > 1 and (spread or not self.require_spread):
                yield node.value, node.paths
