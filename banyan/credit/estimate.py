"""From closed groups to advantages: the leaves that take part, and what each is worth. Pure.

Decides staleness before advantages are estimated, and whitens or shapes them over the batch if the
estimator asks for it. A group that teaches nothing carries the reason (`advantages.skip`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from banyan import reward
from banyan.credit.whitening import whiten
from banyan.errors import InvalidInput, users_code, with_place
from banyan.facts import NO_FACTS, Facts
from banyan.plugins import Advantages, Estimator, GroupTrees, traits
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

Floats = npt.NDArray[np.float64]
Stale = Callable[[Tree, Leaf], bool]


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """A closed tree with the rewards of its leaves.

    rewards: None for a leaf that could not be scored.
    facts: whatever else is known of the tree.
    replayed: an earlier batch consumed it; its age was judged when the replay was drawn.
    """

    tree: Tree
    leaves: Sequence[Leaf]
    rewards: Mapping[Leaf, float | None]
    facts: Facts = NO_FACTS
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Credit:
    """A group with its advantages.

    stale: scored leaves that were left out because of their age.
    replayed: indices of the trees that an earlier batch consumed.
    """

    group: GroupTrees
    advantages: Advantages
    stale: tuple[Leaf, ...] = ()
    replayed: frozenset[int] = frozenset()


def view_of(
    scored: ScoredTree, stale: Stale, by_steps: bool = False
) -> tuple[TreeView, list[Leaf]]:
    """Return the view in which stale leaves have no reward, and the scored leaves among those.

    by_steps: rewards of places inside paths count. A path on which one of them could not be scored
    then has no reward either, as a reward of 0 would be made up.
    """
    aging: list[Leaf] = []
    if not scored.replayed:
        aging = [leaf for leaf in scored.leaves if scored.rewards.get(leaf) is not None]
    old = {leaf for leaf in aging if stale(scored.tree, leaf)}
    excluded = old | (_unknown(scored) if by_steps and scored.facts.unscorable else set())
    rewards = {
        leaf: None if leaf in excluded else scored.rewards.get(leaf) for leaf in scored.leaves
    }
    return TreeView(scored.tree, scored.leaves, rewards, scored.facts), sorted(old)


def _unknown(scored: ScoredTree) -> set[Leaf]:
    """Return the leaves whose paths pass a place that could not be scored."""
    above = {segment.id: (segment.parent, segment.fork) for segment in scored.tree}
    return {leaf for leaf in scored.leaves if reward.passing(scored.facts.unscorable, leaf, above)}


def estimate(
    group_id: str, trees: Sequence[ScoredTree], estimator: Estimator, stale: Stale
) -> Credit:
    """Estimate the advantages of one group.

    Raise InvalidInput if the estimator fails or returns something unusable.
    """
    by_steps = traits.of_estimator(estimator).counts_places
    views: list[TreeView] = []
    stale_leaves: list[Leaf] = []
    for tree in trees:
        view, old = view_of(tree, stale, by_steps)
        views.append(view)
        stale_leaves += old
    group = GroupTrees(group_id, views)
    advantages = _run_estimator(estimator, group)
    _check(group, advantages)
    replayed = frozenset(index for index, tree in enumerate(trees) if tree.replayed)
    return Credit(group, advantages, tuple(stale_leaves), replayed)


def _run_estimator(estimator: Estimator, group: GroupTrees) -> Advantages:
    """Return the estimator's advantages; report what it raises together with its place."""
    with users_code(lambda e: f"the estimator raised {with_place(e)} of group {group.group_id}"):
        advantages = estimator.estimate(group)
    if not isinstance(advantages, Advantages):
        raise InvalidInput(
            f"an estimator answers with Advantages, this one of group {group.group_id} "
            f"with {advantages!r:.100}"
        )
    return advantages


def _check(group: GroupTrees, advantages: Advantages) -> None:
    """Raise InvalidInput unless the advantages fit the group's trees."""
    name = f"the estimator's advantages of group {group.group_id}"
    _check_arrays(name, "leaf_G_L", advantages.leaf_G_L, len(group.trees))
    if advantages.node_G_N is not None:
        _check_arrays(name, "node_G_N", advantages.node_G_N, len(group.trees))
    if not isinstance(advantages.skip, str):
        raise InvalidInput(f"{name} have skip {advantages.skip!r:.100}; a reason is a text")
    for view, leaf_L in zip(group.trees, advantages.leaf_G_L, strict=True):
        if leaf_L.shape != view.rewards_L.shape:
            raise InvalidInput(
                f"{name} are {leaf_L.shape}, the tree has {len(view.rewards_L)} leaves"
            )
        if np.isinf(leaf_L).any() or np.isfinite(leaf_L[~np.isfinite(view.rewards_L)]).any():
            raise InvalidInput(f"{name} are infinite, or finite for a leaf without a score")
    any_scored = any(view.scored_L for view in group.trees)
    must_have_values = any_scored and not (advantages.skip or advantages.node_G_N)
    if must_have_values and all(np.isnan(leaf_L).all() for leaf_L in advantages.leaf_G_L):
        raise InvalidInput(f"{name} are NaN for all leaves; give 0, or a reason to skip the group")
    if advantages.node_G_N:
        for view, node_N in zip(group.trees, advantages.node_G_N, strict=True):
            if node_N.shape != (len(view.nodes),):
                raise InvalidInput(
                    f"{name} are {node_N.shape}, the tree has {len(view.nodes)} nodes"
                )


def _check_arrays(name: str, field: str, arrays: object, trees: int) -> None:
    """Raise InvalidInput unless a field of advantages holds one array of numbers for each tree."""
    if not isinstance(arrays, tuple | list):
        raise InvalidInput(f"{name} have {field} {arrays!r:.100}; it is a tuple of arrays")
    if len(arrays) != trees:
        raise InvalidInput(f"{name} are for {len(arrays)} trees, the group has {trees}")
    for array in arrays:
        if not _is_numeric(array):
            raise InvalidInput(
                f"{name} hold {array!r:.100}, which is no array; {field} has a NumPy array of"
                " numbers for each tree"
            )


def _is_numeric(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "fiu"


def whitened(credits: Sequence[Credit]) -> list[Credit]:
    """Return the credits with advantages whitened over all trained path tokens that teach."""
    teaching = [credit for credit in credits if not credit.advantages.skip]
    values, tokens = _values_and_tokens(teaching)
    fresh = whiten(np.concatenate([np.zeros(0), *values]), np.concatenate([np.zeros(0), *tokens]))
    by_tree = iter(np.split(fresh, np.cumsum([len(v) for v in values])[:-1]))
    return [
        credit
        if credit.advantages.skip
        else _with_values(credit, [next(by_tree) for _ in credit.group.trees])
        for credit in credits
    ]


def _values_and_tokens(credits: Sequence[Credit]) -> tuple[list[Floats], list[Floats]]:
    """Return all advantages, an array per tree, and the path tokens that each holds for."""
    values: list[Floats] = []
    tokens: list[Floats] = []
    for credit in credits:
        node_G_N = credit.advantages.node_G_N
        for index, view in enumerate(credit.group.trees):
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


def _with_values(credit: Credit, values: Sequence[Floats]) -> Credit:
    advantages = credit.advantages
    if advantages.node_G_N is not None:
        return replace(credit, advantages=replace(advantages, node_G_N=tuple(values)))
    return replace(credit, advantages=replace(advantages, leaf_G_L=tuple(values)))


def shaped(credits: Sequence[Credit], estimator: Estimator) -> list[Credit]:
    """Return the credits with the factors of an estimator that shapes tokens; others unchanged."""
    factors = traits.attribute(estimator, "factors")
    teaching = [credit for credit in credits if not credit.advantages.skip]
    if factors is None or not teaching:
        return list(credits)
    views = [view for credit in teaching for view in credit.group.trees]
    with users_code(lambda error: f"the estimator's factors raised {with_place(error)}"):
        by_tree = iter(_checked_factors(list(factors(views)), views))
    return [
        credit
        if credit.advantages.skip
        else _with_factors(credit, [next(by_tree) for _ in credit.group.trees])
        for credit in credits
    ]


def _checked_factors(
    factors: Sequence[Sequence[Floats]], views: Sequence[TreeView]
) -> Sequence[Sequence[Floats]]:
    """Return factors; raise InvalidInput unless there is an array for each node of each tree."""
    if len(factors) != len(views):
        raise InvalidInput(f"the estimator's factors are for {len(factors)} trees of {len(views)}")
    for view, factor_N_T in zip(views, factors, strict=True):
        lengths = [len(factor_T) if _is_numeric(factor_T) else -1 for factor_T in factor_N_T]
        if lengths != [len(node) for node in view.nodes]:
            raise InvalidInput(
                f"the estimator's factors of a tree are {factor_N_T!r:.100}; they are an array of"
                " numbers for each node, one for each of its tokens"
            )
    return factors


def _with_factors(credit: Credit, factors: Sequence[Sequence[Floats]]) -> Credit:
    return replace(credit, advantages=replace(credit.advantages, factor_G_N_T=tuple(factors)))


def over_batch(
    credits: Sequence[Credit], estimator: Estimator, whitening: bool = False
) -> list[Credit]:
    """Apply what an estimator needs the whole batch for: whitening, and the shaping of tokens."""
    if whitening or traits.attribute(estimator, "whiten"):
        credits = whitened(credits)
    return shaped(credits, estimator)
