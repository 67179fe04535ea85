"""Estimators that value nodes, against hand-computed numbers of their papers' formulas."""

from typing import Any

import numpy as np
import pytest

from banyan.credit.group_arrays import group_arrays
from banyan.errors import InvalidInput
from banyan.segment import Finish
from methods.advantages.branch_depth import BranchDepth
from methods.advantages.grpo import Grpo
from methods.advantages.mars2 import Mars2
from methods.advantages.portool import PorTool
from methods.advantages.rose import Rose, longer
from methods.advantages.treeps import TreePS
from methods.advantages.treerl import TreeRL
from tests.methods.advantages.planting import (
    Planted,
    Twig,
    chain,
    flat,
    group,
    leaf,
    leaves,
    nodes,
    planted,
)


def bushy() -> Planted:
    """Return root → a (1), root → b → (0, 1)."""
    return planted([leaf(1), Twig([leaf(0), leaf(1)])])


@pytest.mark.parametrize(
    ("discount", "expected"),
    [("none", (1.0, -0.5, -1.75, 1.25)), ("sqrt", (1.0, -0.3536, -1.8232, 1.1768))],
)
def test_treerl(discount: str, expected: Any) -> None:
    np.testing.assert_allclose(nodes(TreeRL(discount), bushy()), expected, atol=1e-4)


def test_treerl_may_select_some_of_the_leaves_with_a_right_one_among_them() -> None:
    """TreeRL (arXiv 2506.11902) selects 16 of 30 leaves, at least one of them correct."""
    observed = set()
    for right in range(30):
        tree = planted([Twig([leaf(int(5 * b + i == right)) for i in range(5)]) for b in range(6)])
        output = leaves(TreeRL(select=16), tree.view)
        counted = np.flatnonzero(np.isfinite(output))
        assert len(counted) == 16 and right in counted
        observed.add(tuple(counted.tolist()))
    assert len(observed) > 1
    np.testing.assert_allclose(nodes(TreeRL(select=3), bushy()), nodes(TreeRL(), bushy()))
    with pytest.raises(ValueError, match="at least 2, got 1"):
        TreeRL(select=1)


def test_treerl_is_treeps_with_one_left_out() -> None:
    np.testing.assert_allclose(nodes(TreeRL(), bushy()), np.array(nodes(TreePS(), bushy())) * 3 / 2)


def test_treeps() -> None:
    tree = planted([Twig([leaf(1), leaf(0)]), Twig([leaf(1), leaf(1)])])
    np.testing.assert_allclose(nodes(TreePS(), tree), (-0.5, 0.75, -1.25, 0.5, 0.25, 0.25))


def acted(*ends: Twig) -> list[Twig]:
    """Return a chain of actions with answers; the last action of a path has none."""
    return [chain(Twig(), Twig(kind="tool"), end) for end in ends]


def test_treeps_on_chains_counts_the_first_step_twice() -> None:
    tree = planted(acted(leaf(1), leaf(0), leaf(0), leaf(0)))
    np.testing.assert_allclose(nodes(TreePS(), tree), [1.5, 1.5, 0.75] + 3 * [-0.5, -0.5, -0.25])


def test_treeps_may_count_every_segment_as_a_step() -> None:
    tree = planted([chain(Twig(), leaf(1)), chain(Twig(), leaf(0))])
    np.testing.assert_allclose(nodes(TreePS(), tree), (1, 1, -1, -1))
    np.testing.assert_allclose(nodes(TreePS(steps="segments"), tree), (1, 0.5, -1, -0.5))
    cut = planted([chain(Twig(finish=Finish.ABORTED), leaf(1)), chain(Twig(), leaf(0))])
    np.testing.assert_allclose(nodes(TreePS(steps="segments"), cut), (1, 1, -1, -0.5))


def four_rollouts(order: Any = None) -> Planted:
    """Return r0 of 10 tokens with reward 1; r1 left it after 4, r3 after 6; r2 begins at the
    prompt."""
    from_6 = [leaf(1, tokens=4), leaf(1, tokens=4)]
    from_4 = [Twig(from_6, tokens=2), leaf(0, tokens=6)]
    return planted([Twig(from_4, tokens=4), leaf(0, tokens=10)])


def test_rose() -> None:
    third = 1 / 3
    np.testing.assert_allclose(
        nodes(Rose(), four_rollouts()), (0.5 * third, third, 0, 0, -2 * third, -0.5), atol=1e-12
    )


def test_rose_telescopes() -> None:
    tree = four_rollouts()
    result = Rose().estimate(group(tree.view)).node_G_N[0]
    sums = [sum(result[i] for i in tree.view.path(k)) for k in range(4)]
    np.testing.assert_allclose(sums, tree.view.rewards_L - 0.5)


def turns(*rewards: float, inner: float | None = None) -> Planted:
    """Return a path for each reward: a turn, a tool's answer, and a turn."""
    return planted(
        [
            chain(Twig(), Twig(kind="tool", inner=inner), leaf(reward, tokens=2))
            for reward in rewards
        ]
    )


def test_rose_parts_a_path_where_it_forks_and_nowhere_else() -> None:
    """An advantage of ROSE (arXiv 2601.05053) is for a run between two branch points.

    Both turns of an unforked path lie in one such run.
    """
    np.testing.assert_allclose(nodes(Rose(), turns(1, 0)), 3 * [0.5] + 3 * [-0.5])
    np.testing.assert_allclose(nodes(Rose(), turns(1, 0, inner=0.25)), 3 * [0.5] + 3 * [-0.5])
    alone = turns(1), planted([chain(Twig(), Twig(kind="tool"), leaf(0))], b"u" * 32)
    np.testing.assert_allclose(nodes(Rose(), *alone), 3 * [0.5])
    forked = planted([chain(Twig(), Twig(kind="tool"), Twig([leaf(1), leaf(0)])), leaf(0)])
    sixth = 1 / 6
    np.testing.assert_allclose(nodes(Rose(), forked), (sixth, sixth, sixth, 0.5, -0.5, -2 * sixth))


def test_treerl_parts_a_path_where_it_forks_and_nowhere_else() -> None:
    """A node of an EPTree ends at a fork: V = ±1 against the other leaf, A = V + V − V(root)."""
    for discount in ("none", "sqrt"):
        np.testing.assert_allclose(nodes(TreeRL(discount), turns(1, 0)), 3 * [2] + 3 * [-2])
        np.testing.assert_allclose(
            nodes(TreeRL(discount), turns(1, 0, inner=0.25)), 3 * [2] + 3 * [-2]
        )


def test_treeps_parts_a_path_at_every_action() -> None:
    """A node of TreePS-RAG (arXiv 2601.06922) is an action with its observation.

    On separate chains the first has 2 (R − mean), later ones R − mean. A score of a place inside a
    path makes no step.
    """
    for tree in (turns(1, 0), turns(1, 0, inner=0.25)):
        np.testing.assert_allclose(nodes(TreePS(), tree), (1, 1, 0.5, -1, -1, -0.5))
    scored = [planted([chain(Twig(inner=inner), leaf(1)), leaf(0)]) for inner in (None, 0.25)]
    for tree in scored:
        np.testing.assert_allclose(nodes(TreePS(), tree), (1, 1, -1))


def test_roses_length_term() -> None:
    assert longer(np.array([14.0]), 10, np.array([6.0]), 1.0)[0] == 0.5
    tree = planted([Twig([leaf(1, tokens=4), leaf(0.8, tokens=8), leaf(0, tokens=9)], tokens=6)])
    plain, shaped = nodes(Rose(), tree), nodes(Rose(length_penalty=1.0), tree)
    np.testing.assert_allclose(plain, (0, 0.4, 0.2, -0.6), atol=1e-12)
    np.testing.assert_allclose(shaped, (0, 0.4, 0.1, -0.6), atol=1e-12)


def portool_tree() -> Planted:
    """Return s1 shared by k1 (right, T = 2) and k2 (wrong, T = 3), and k3 (right, T = 2) by
    itself."""
    wrong = chain(Twig(), Twig(kind="tool"), leaf(-1))
    return planted([Twig([leaf(1), wrong]), chain(Twig(), Twig(kind="tool"), leaf(1))])


def test_portool() -> None:
    tree = portool_tree()
    reward_S = PorTool().rewards(group_arrays(group(tree.view)))
    np.testing.assert_allclose(reward_S, (0.9025 * 0 + reward_S[0], 0.02375, 1, -0.95, -1, 0.95, 1))
    fork = nodes(PorTool(trajectory=0), tree)
    np.testing.assert_allclose(
        [fork[i] for i in (0, 5, 1, 2)], (-0.7071, 0.7071, 0.7071, -0.7071), atol=1e-4
    )
    np.testing.assert_allclose(leaves(Grpo(), tree.view), (0.5774, -1.1547, 0.5774), atol=1e-4)
    both = nodes(PorTool(), tree)
    np.testing.assert_allclose(both[1], 0.5774 + 0.7071, atol=1e-4)
    assert both[0] < 0, "the shared prefix of a right trajectory is worth less than its sibling"


def test_portool_adds_a_format_score_and_refuses_a_step_without_one() -> None:
    tree = planted([leaf(1, named={"fm": 0.25}), leaf(1, named={"fm": -0.25})])
    np.testing.assert_allclose(
        nodes(PorTool(trajectory=0, format="fm"), tree), (0.7071, -0.7071), atol=1e-4
    )
    with pytest.raises(InvalidInput, match="portool needs 'fm' on every step"):
        PorTool(format="fm").estimate(group(planted([leaf(1, named={"fm": 1.0}), leaf(0)]).view))


@pytest.mark.parametrize(
    ("parent", "expected"),
    [("shaped", (-0.4895, 1.1966, -1.0879, 0.3807)), ("raw", (-0.463, 1.1712, -1.1167, 0.4086))],
)
def test_mars2(parent: str, expected: Any) -> None:
    tree = planted([Twig([leaf(0.8), leaf(0.2)], inner=0.4), leaf(0.6)])
    np.testing.assert_allclose(nodes(Mars2(parent=parent), tree), expected, atol=1e-4)


def test_mars2_credits_an_agents_own_nodes_and_refuses_what_it_lacks() -> None:
    tree = planted([leaf(1, named={"agent": "a"}), leaf(0, named={"agent": "b"})])
    np.testing.assert_allclose(nodes(Mars2(agent="a"), tree), (0.7071, 0), atol=1e-4)
    with pytest.raises(
        InvalidInput, match=r"mars2 needs a reward on every node.*score every program"
    ):
        Mars2().estimate(group(planted([Twig([leaf(1), leaf(0)])]).view))
    with pytest.raises(InvalidInput, match="mars2 needs 'agent'"):
        Mars2(agent="a").estimate(group(flat((1, 0))))


def test_branch_depth() -> None:
    tree = planted([Twig([leaf(1), leaf(0)]), Twig([leaf(0.5), leaf(0.1)])])
    np.testing.assert_allclose(
        nodes(BranchDepth(), tree), (0.7071, 1.3198, -0.8799, -0.7071, 0.22, -0.6599), atol=1e-4
    )


def test_branch_depth_weights_children_by_how_likely_they_were() -> None:
    tree = planted([Twig([leaf(1, logprob=0.2), leaf(0, logprob=0.0)]), leaf(0)])
    arrays = group_arrays(group(tree.view))
    np.testing.assert_allclose(
        BranchDepth("likely").fused(arrays, arrays.rewards_L)[1], 0.5498, atol=1e-4
    )


def test_branch_depth_weights_children_that_are_all_unlikely() -> None:
    """exp(100 · −8) is 0 in float64; only differences among siblings count."""
    tree = planted([Twig([leaf(1, logprob=-8.0), leaf(0, logprob=-8.02)]), leaf(0, logprob=-8.0)])
    arrays = group_arrays(group(tree.view))
    estimator = BranchDepth("likely", sharpness=100.0)
    share = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(estimator.fused(arrays, arrays.rewards_L)[1], share, atol=1e-4)
    np.testing.assert_allclose(
        nodes(estimator, tree), (0.7071, 0.7071, -0.7071, -0.7071), atol=1e-4
    )
    ended = planted([Twig([leaf(1, logprob=-8.0)], leaf=True, reward=0.25), leaf(0)])
    arrays = group_arrays(group(ended.view))
    np.testing.assert_allclose(estimator.fused(arrays, arrays.rewards_L)[1], 0.25)


def test_branch_depth_counts_a_chain_once() -> None:
    tree = planted([chain(Twig(), Twig(kind="tool"), leaf(1)), leaf(0), leaf(0)])
    np.testing.assert_allclose(
        nodes(BranchDepth(), tree), (1.1547,) * 3 + (-0.5774,) * 2, atol=1e-4
    )
