"""What every estimator asks of a group first: its scored leaves, and whether their rewards differ at all."""

import numpy as np
import numpy.typing as npt

from banyan.plugins import Advantages, GroupTrees

Floats = npt.NDArray[np.float64]

# Rewards are means of scorers' values: equal ones may differ in their last bits.
_EQUAL = 1e-9


def rewards_of(group: GroupTrees) -> Floats:
    """Rewards of all leaves of the group's trees, one after the other; nan where unscorable."""
    parts = [tree.rewards_L for tree in group.trees]
    return np.concatenate(parts) if parts else np.zeros(0)


def lesson_missing(rewards_L: Floats) -> str:
    """Why the rewards teach nothing; empty if they do."""
    scored_L = rewards_L[np.isfinite(rewards_L)]
    if len(scored_L) < 2:
        return f"{len(scored_L)} scored leaves; a comparison needs two"
    if np.ptp(scored_L) <= _EQUAL * max(1.0, float(np.abs(scored_L).max())):
        return "zero variance"
    return ""


def nothing(group: GroupTrees, reason: str) -> Advantages:
    """Advantages of a group that teaches nothing: 0 for each scored leaf, nan for the others."""
    return Advantages(tuple(np.where(np.isfinite(t.rewards_L), 0.0, np.nan) for t in group.trees), skip=reason)


def by_tree(group: GroupTrees, values_L: Floats) -> tuple[Floats, ...]:
    """Values of all leaves, cut back into the group's trees."""
    ends = np.cumsum([len(tree.rewards_L) for tree in group.trees])[:-1]
    return tuple(np.split(values_L, ends))
