"""What every estimator asks of a group: its scored leaves, whether their rewards differ at all, and its answer's form."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from banyan.credit.stats import EQUAL
from banyan.plugins import Advantages, GroupTrees

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_SMALL = 1e-12  # an advantage of no more moves nothing


def rewards_of(group: GroupTrees) -> Floats:
    """Rewards of all leaves of the group's trees, one after the other; nan where unscorable."""
    parts = [tree.rewards_L for tree in group.trees]
    return np.concatenate(parts) if parts else np.zeros(0)


def trees_of(group: GroupTrees) -> Ints:
    """Index of the tree of each of these leaves."""
    return np.repeat(np.arange(len(group.trees)), [len(tree.rewards_L) for tree in group.trees])


def lesson_missing(rewards_L: Floats) -> str:
    """Why the rewards teach nothing; empty if they do."""
    scored_L = rewards_L[np.isfinite(rewards_L)]
    if len(scored_L) < 2:
        return f"{len(scored_L)} scored leaves; a comparison needs two"
    if np.ptp(scored_L) <= EQUAL * max(1.0, float(np.abs(scored_L).max())):
        return "zero variance"
    return ""


def why_nothing(values: Floats, scored: int) -> str:
    """Why advantages that are all 0 teach nothing; empty if one is not."""
    if np.abs(values).max(initial=0.0) > _SMALL:
        return ""
    return "zero variance" if scored > 1 else f"{scored} scored leaves; a comparison needs two"


def nothing(group: GroupTrees, reason: str) -> Advantages:
    """Advantages of a group that teaches nothing: 0 for each scored leaf, nan for the others."""
    return Advantages(
        tuple(np.where(np.isfinite(t.rewards_L), 0.0, np.nan) for t in group.trees), skip=reason
    )


def by_tree(group: GroupTrees, values_L: Floats) -> tuple[Floats, ...]:
    """Values of all leaves, cut back into the group's trees."""
    ends = np.cumsum([len(tree.rewards_L) for tree in group.trees])[:-1]
    return tuple(np.split(values_L, ends))[: len(group.trees)]


def leaf_valued(group: GroupTrees, values_L: Floats) -> Advantages:
    """Advantages of leaves that were given theirs; a group of zeros teaches nothing, and says so."""
    said = values_L[np.isfinite(values_L)]
    return Advantages(
        by_tree(group, values_L), skip=why_nothing(said, int(np.isfinite(rewards_of(group)).sum()))
    )


def compared(group: GroupTrees, value: Callable[[Floats, Ints], Floats]) -> Advantages:
    """Advantages by rewards alone: `value` of the scored rewards and the index of the tree that each is of. Nothing where
    the rewards do not differ."""
    rewards_L = rewards_of(group)
    reason = lesson_missing(rewards_L)
    if reason:
        return nothing(group, reason)
    scored_L = np.isfinite(rewards_L)
    values_L = np.full(len(rewards_L), np.nan)
    values_L[scored_L] = value(rewards_L[scored_L], trees_of(group)[scored_L])
    return leaf_valued(group, values_L)
