"""Estimators that give credit per leaf, as `banyan simulate` says: forks make no difference.

Rewards that change places within a tree change the advantages in the same way, whichever leaves
share a fork.
"""

import numpy as np
import pytest

from banyan import registry
from banyan.payoff.verdict import WHOLE_LEAVES
from banyan.plugins import traits
from tests.methods.advantages.planting import Twig, group, leaf, planted

# They compare subtrees, branches or the values of nodes.
BY_FORKS = ("branch-depth", "rose", "treepo", "treerl", "treeps")


def credit(name: str, rewards: tuple[float, ...]) -> np.ndarray:
    """Return the advantages along each path of two pairs of leaves, each pair below a fork."""
    a, b, c, d = (leaf(reward) for reward in rewards)
    tree = planted([Twig([a, b]), Twig([c, d])]).view
    beside = planted([leaf(0.25), leaf(0.75)], b"u" * 32).view
    result = registry.estimator(name, {}).estimate(group(tree, beside))
    if result.node_G_N is None:
        return np.asarray(result.leaf_G_L[0])
    return np.array([result.node_G_N[0][tree.path(at)] for at in range(4)])


def is_moved(name: str) -> bool:
    """Return whether advantages change places with their rewards, across the fork."""
    before, after = credit(name, (1.0, 0.0, 0.5, 0.25)), credit(name, (0.5, 0.0, 1.0, 0.25))
    return bool(np.allclose(before[[2, 1, 0, 3]], after, equal_nan=True))


@pytest.mark.parametrize("name", sorted(WHOLE_LEAVES))
def test_leaves_are_compared_whole(name: str) -> None:
    assert is_moved(name)


@pytest.mark.parametrize("name", BY_FORKS)
def test_others_look_at_forks(name: str) -> None:
    assert name not in WHOLE_LEAVES and not is_moved(name)


@pytest.mark.parametrize("name", sorted(registry.names("optimise")))
def test_a_leaf_alone_teaches_where_the_estimator_says_so(name: str) -> None:
    estimator = registry.estimator(name, {})
    if name == "sage-skill":  # a leaf of its trees has a place with a reward of its own above it
        assert not traits.of_estimator(estimator).alone
        return
    result = estimator.estimate(group(planted([leaf(1.0)]).view))
    assert traits.of_estimator(estimator).alone == (not result.skip)
