"""From closed groups to advantages: which leaves take part, what each is worth, and why a group teaches nothing.

Pure. Decides staleness before advantages are estimated, whitens over the batch where the estimator asks for it, and sums
the batch up for its row in the store.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from banyan import facts, reward
from banyan.credit.whitening import whiten
from banyan.errors import BanyanError, InvalidInput, with_place
from banyan.facts import NO_FACTS, Facts
from banyan.plugins import Advantages, Estimator, GroupTrees
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

Floats = npt.NDArray[np.float64]
Stale = Callable[[Tree, Leaf], bool]


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """A closed tree with its leaves and their rewards, None where unscorable, and what else is known of it. replayed: an
    earlier batch consumed it; how old it may be was decided when it was drawn."""

    tree: Tree
    leaves: Sequence[Leaf]
    rewards: Mapping[Leaf, float | None]
    facts: Facts = NO_FACTS
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Credit:
    """A group with its advantages. `stale`: the leaves that left it because of their age. `replayed`: places of the trees
    that an earlier batch consumed."""

    group: GroupTrees
    advantages: Advantages
    stale: tuple[Leaf, ...] = ()
    replayed: frozenset[int] = frozenset()


def view_of(
    scored: ScoredTree, stale: Stale, by_steps: bool = False
) -> tuple[TreeView, list[Leaf]]:
    """The view in which stale leaves have no reward; and those of them that had one. by_steps: rewards of places inside
    paths count, so a path on which one could not be scored has no reward either: never one of 0."""
    aging = (
        []
        if scored.replayed
        else [leaf for leaf in scored.leaves if scored.rewards.get(leaf) is not None]
    )
    old = {leaf for leaf in aging if stale(scored.tree, leaf)}
    gone = old | (_unknown(scored) if by_steps and scored.facts.unscorable else set())
    rewards = {leaf: None if leaf in gone else scored.rewards.get(leaf) for leaf in scored.leaves}
    return TreeView(scored.tree, scored.leaves, rewards, scored.facts), sorted(old)


def _unknown(scored: ScoredTree) -> set[Leaf]:
    """The leaves whose paths pass a place that could not be scored."""
    above = {segment.id: (segment.parent, segment.fork) for segment in scored.tree}
    return {leaf for leaf in scored.leaves if reward.passing(scored.facts.unscorable, leaf, above)}


def estimate(
    group_id: str, trees: Sequence[ScoredTree], estimator: Estimator, stale: Stale
) -> Credit:
    """Advantages of one group. Raises InvalidInput where an estimator returns something unusable."""
    seen = [view_of(tree, stale, facts.by_steps(estimator)) for tree in trees]
    group = GroupTrees(group_id, [view for view, _ in seen])
    advantages = _estimated(estimator, group)
    _check(group, advantages)
    again = frozenset(index for index, tree in enumerate(trees) if tree.replayed)
    return Credit(group, advantages, tuple(leaf for _, old in seen for leaf in old), again)


def _estimated(estimator: Estimator, group: GroupTrees) -> Advantages:
    """What the estimator says. It may be anybody's code: what it raises is said with its place."""
    try:
        found = estimator.estimate(group)
    except BanyanError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"the estimator raised {with_place(error)} of group {group.group_id}"
        ) from error
    if not isinstance(found, Advantages):
        raise InvalidInput(
            f"an estimator answers with Advantages, this one of group {group.group_id} with {found!r:.100}"
        )
    return found


def _check(group: GroupTrees, advantages: Advantages) -> None:
    name = f"the estimator's advantages of group {group.group_id}"
    if len(advantages.leaf_G_L) != len(group.trees):
        raise InvalidInput(
            f"{name} are for {len(advantages.leaf_G_L)} trees, the group has {len(group.trees)}"
        )
    for view, leaf_L in zip(group.trees, advantages.leaf_G_L, strict=True):
        if leaf_L.shape != view.rewards_L.shape:
            raise InvalidInput(
                f"{name} are {leaf_L.shape}, the tree has {len(view.rewards_L)} leaves"
            )
        if np.isinf(leaf_L).any() or np.isfinite(leaf_L[~np.isfinite(view.rewards_L)]).any():
            raise InvalidInput(f"{name} are infinite, or finite for a leaf without a score")
    scored, silent = (
        any(view.scored_L for view in group.trees),
        not (advantages.skip or advantages.node_G_N),
    )
    if scored and silent and all(np.isnan(leaf_L).all() for leaf_L in advantages.leaf_G_L):
        raise InvalidInput(f"{name} are NaN for all leaves; give 0, or a reason to skip the group")
    for view, node_N in zip(
        group.trees, advantages.node_G_N or (), strict=bool(advantages.node_G_N)
    ):
        if node_N.shape != (len(view.nodes),):
            raise InvalidInput(f"{name} are {node_N.shape}, the tree has {len(view.nodes)} nodes")


def whitened(credits: Sequence[Credit]) -> list[Credit]:
    """The batch's credits with their advantages whitened over all trained path tokens of the groups that teach."""
    taught = [c for c in credits if not c.advantages.skip]
    values, tokens = _counted(taught)
    fresh = whiten(np.concatenate([np.zeros(0), *values]), np.concatenate([np.zeros(0), *tokens]))
    parts = iter(np.split(fresh, np.cumsum([len(v) for v in values])[:-1]))
    return [
        c if c.advantages.skip else _replaced(c, [next(parts) for _ in c.group.trees])
        for c in credits
    ]


def _counted(taught: Sequence[Credit]) -> tuple[list[Floats], list[Floats]]:
    """Every advantage of the batch, a tree an array, with the number of path tokens that each holds for."""
    values: list[Floats] = []
    tokens: list[Floats] = []
    for credit in taught:
        for index, view in enumerate(credit.group.trees):
            node_G_N = credit.advantages.node_G_N
            values.append(node_G_N[index] if node_G_N else credit.advantages.leaf_G_L[index])
            tokens.append(_node_tokens(view) if node_G_N else _leaf_tokens(view))
    return values, tokens


def _leaf_tokens(view: TreeView) -> Floats:
    lengths = [
        sum(len(view.nodes[i]) for i in view.path(leaf) if view.nodes[i].trained)
        for leaf in range(len(view.leaves_L))
    ]
    return np.array(lengths, np.float64)


def _node_tokens(view: TreeView) -> Floats:
    return np.array([n.paths * len(n) if n.trained else 0 for n in view.nodes], np.float64)


def _replaced(credit: Credit, fresh: Sequence[Floats]) -> Credit:
    node_valued = credit.advantages.node_G_N is not None
    said = credit.advantages
    found = (
        replace(said, node_G_N=tuple(fresh))
        if node_valued
        else replace(said, leaf_G_L=tuple(fresh))
    )
    return replace(credit, advantages=found)


def shaped(credits: Sequence[Credit], estimator: Estimator) -> list[Credit]:
    """The batch's credits with the factors of an estimator that shapes tokens; the others as they are."""
    factors = getattr(estimator, "factors", None)
    taught = [c for c in credits if not c.advantages.skip]
    if factors is None or not taught:
        return list(credits)
    parts = iter(factors([view for c in taught for view in c.group.trees]))
    return [
        c if c.advantages.skip else _factored(c, [next(parts) for _ in c.group.trees])
        for c in credits
    ]


def _factored(credit: Credit, factors: Sequence[Sequence[Floats]]) -> Credit:
    return replace(credit, advantages=replace(credit.advantages, factor_G_N_T=tuple(factors)))


def over_batch(
    credits: Sequence[Credit], estimator: Estimator, whitening: bool = False
) -> list[Credit]:
    """What an estimator asks of the batch as a whole: whitening, and the shaping of tokens."""
    return shaped(
        whitened(credits) if whitening or getattr(estimator, "whiten", False) else credits,
        estimator,
    )
