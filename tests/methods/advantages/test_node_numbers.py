"""Estimators that value nodes, against the hand-computed numbers of their method cards."""

from typing import Any

import numpy as np
import pytest

from banyan.credit import stats
from banyan.credit.grove import plant
from banyan.errors import InvalidInput
from banyan.segment import Finish
from methods.advantages import episodes
from methods.advantages.branch_depth import BranchDepth
from methods.advantages.gigpo import GiGpo
from methods.advantages.grpo import Grpo
from methods.advantages.hgpo import Hgpo
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
    """root → a (1), root → b → (0, 1)."""
    return planted([leaf(1), Twig([leaf(0), leaf(1)])])


@pytest.mark.parametrize(
    ("discount", "expected"), [("none", (1.0, -0.5, -1.75, 1.25)), ("sqrt", (1.0, -0.3536, -1.8232, 1.1768))]
)
def test_treerl(discount: str, expected: Any) -> None:
    np.testing.assert_allclose(nodes(TreeRL(discount), bushy()), expected, atol=1e-4)


def test_treerl_may_select_some_of_the_leaves_with_a_right_one_among_them() -> None:
    """The card: 16 of 30 leaves, at least one correct."""
    seen = set()
    for right in range(30):
        tree = planted([Twig([leaf(int(5 * b + i == right)) for i in range(5)]) for b in range(6)])
        said = leaves(TreeRL(select=16), tree.view)
        counted = np.flatnonzero(np.isfinite(said))
        assert len(counted) == 16 and right in counted
        seen.add(tuple(counted.tolist()))
    assert len(seen) > 1
    np.testing.assert_allclose(nodes(TreeRL(select=3), bushy()), nodes(TreeRL(), bushy()))
    with pytest.raises(ValueError, match="at least 2, got 1"):
        TreeRL(select=1)


def test_treerl_is_treeps_with_one_left_out() -> None:
    np.testing.assert_allclose(nodes(TreeRL(), bushy()), np.array(nodes(TreePS(), bushy())) * 3 / 2)


def test_treeps() -> None:
    tree = planted([Twig([leaf(1), leaf(0)]), Twig([leaf(1), leaf(1)])])
    np.testing.assert_allclose(nodes(TreePS(), tree), (-0.5, 0.75, -1.25, 0.5, 0.25, 0.25))


def acted(*ends: Twig) -> list[Twig]:
    """Each step is an action with an answer, but the last of a path."""
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
    """Card 30: r0 of 10 tokens with reward 1; r1 left it after 4, r3 after 6; r2 begins at the prompt."""
    from_6 = [leaf(1, tokens=4), leaf(1, tokens=4)]
    from_4 = [Twig(from_6, tokens=2), leaf(0, tokens=6)]
    return planted([Twig(from_4, tokens=4), leaf(0, tokens=10)])


def test_rose() -> None:
    third = 1 / 3
    np.testing.assert_allclose(nodes(Rose(), four_rollouts()), (0.5 * third, third, 0, 0, -2 * third, -0.5), atol=1e-12)


def test_rose_telescopes() -> None:
    tree = four_rollouts()
    found = Rose().estimate(group(tree.view)).node_G_N[0]
    sums = [sum(found[i] for i in tree.view.path(k)) for k in range(4)]
    np.testing.assert_allclose(sums, tree.view.rewards_L - 0.5)


def turns(*rewards: float, inner: float | None = None) -> Planted:
    """A path a reward: a turn, what a tool said, and a turn."""
    return planted([chain(Twig(), Twig(kind="tool", inner=inner), leaf(reward, tokens=2)) for reward in rewards])


def test_rose_parts_a_path_where_it_forks_and_nowhere_else() -> None:
    """ROSE (arXiv 2601.05053) has an advantage between two branch points; both turns of an unforked path lie in one such."""
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
        np.testing.assert_allclose(nodes(TreeRL(discount), turns(1, 0, inner=0.25)), 3 * [2] + 3 * [-2])


def test_treeps_parts_a_path_at_every_action() -> None:
    """A node of TreePS-RAG (arXiv 2601.06922) is an action with its observation; on chains of their own the first has
    2 (R − mean), later ones R − mean. A score of a place inside a path makes no step."""
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
    """s1 is shared by k1 (right, T = 2) and k2 (wrong, T = 3); another first step belongs to k3 (right, T = 2)."""
    wrong = chain(Twig(), Twig(kind="tool"), leaf(-1))
    return planted([Twig([leaf(1), wrong]), chain(Twig(), Twig(kind="tool"), leaf(1))])


def test_portool() -> None:
    tree = portool_tree()
    reward_S = PorTool().rewards(plant(group(tree.view)))
    np.testing.assert_allclose(reward_S, (0.9025 * 0 + reward_S[0], 0.02375, 1, -0.95, -1, 0.95, 1))
    fork = nodes(PorTool(trajectory=0), tree)
    np.testing.assert_allclose([fork[i] for i in (0, 5, 1, 2)], (-0.7071, 0.7071, 0.7071, -0.7071), atol=1e-4)
    np.testing.assert_allclose(leaves(Grpo(), tree.view), (0.5774, -1.1547, 0.5774), atol=1e-4)
    both = nodes(PorTool(), tree)
    np.testing.assert_allclose(both[1], 0.5774 + 0.7071, atol=1e-4)
    assert both[0] < 0, "the shared prefix of a right trajectory is worth less than its sibling"


def test_portool_adds_a_format_score_and_refuses_a_step_without_one() -> None:
    tree = planted([leaf(1, named={"fm": 0.25}), leaf(1, named={"fm": -0.25})])
    np.testing.assert_allclose(nodes(PorTool(trajectory=0, format="fm"), tree), (0.7071, -0.7071), atol=1e-4)
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
    with pytest.raises(InvalidInput, match=r"mars2 needs a reward on every node.*score every program"):
        Mars2().estimate(group(planted([Twig([leaf(1), leaf(0)])]).view))
    with pytest.raises(InvalidInput, match="mars2 needs 'agent'"):
        Mars2(agent="a").estimate(group(flat((1, 0))))


def states(names: str, rewards: Any) -> Twig:
    """A chain of actions, each in a named state, with a reward each."""
    made: list[Twig] = []
    for index, (name, reward) in enumerate(zip(names, rewards, strict=True)):
        last = index == len(names) - 1
        made.append(Twig(leaf=last, reward=reward if last else None, inner=None if last else reward, named={"state": name}))
    return chain(*made)


def gigpo_tree() -> Planted:
    return planted([states("ABC", (0, 0, 10)), states("AD", (0, 0))])


def test_gigpo() -> None:
    np.testing.assert_allclose(nodes(GiGpo(), gigpo_tree()), (8.5125, 4, 4, -10.5125, -6))
    scaled = nodes(GiGpo(scale="mean_std"), gigpo_tree())
    np.testing.assert_allclose(scaled, (0.7303 + 0.7071, 0.7303, 0.7303, -1.0954 - 0.7071, -1.0954), atol=1e-4)
    per_path = nodes(GiGpo(scale="mean_std", rows="episodes"), gigpo_tree())
    np.testing.assert_allclose(per_path[1:3], (0.7071, 0.7071), atol=1e-4)


def test_gigpo_without_its_step_term_on_one_step_is_grpo() -> None:
    rewards = (1, 0, 0, 0)
    np.testing.assert_allclose(leaves(GiGpo(step_weight=0, scale="mean_std"), flat(rewards)), leaves(Grpo(), flat(rewards)))


def test_gigpo_where_no_state_comes_again_is_its_episode_term() -> None:
    """Card 57."""
    tree = planted([states("ABC", (0, 0, 10)), states("DE", (0, 0))])
    for scale in ("mean", "mean_std"):
        np.testing.assert_array_equal(nodes(GiGpo(scale=scale), tree), nodes(GiGpo(scale=scale, step_weight=0), tree))
    assert nodes(GiGpo(), tree) == pytest.approx([4, 4, 4, -6, -6])


def test_gigpo_reads_the_state_that_the_environment_says() -> None:
    def path(answer: int, reward: float) -> Twig:
        return chain(Twig(), Twig(kind="tool", word=answer), leaf(reward))

    tree = planted([path(1, 1), path(1, 0), path(2, 0)])
    found = nodes(GiGpo(gamma=1.0), tree)
    third = 1 / 3
    np.testing.assert_allclose(found[0::3], (4 * third, -2 * third, -2 * third))  # all in the prompt's state
    np.testing.assert_allclose(found[2::3], (2 * third + 0.5, -third - 0.5, -third))


def test_gigpo_may_take_states_that_are_alike_for_one() -> None:
    """Card 57: difflib's ratio to the first of a state, first fit. Of "abcd" and "abcx" .75; of "abyx" .75 to the second, .5
    to the first."""

    def tree(*names: str) -> Planted:
        return planted([leaf(r, named={"state": name}) for r, name in zip((1, 0, 0), names, strict=True)])

    third = 1 / 3
    apart = np.array([2 * third, -third, -third])
    np.testing.assert_allclose(nodes(GiGpo(), tree("abcd", "abcx", "abyx")), apart)
    long = "".join(np.random.default_rng(0).choice(list("abcdefghij"), 300))
    other = "".join("." if i % 25 == 0 else letter for i, letter in enumerate(long))
    np.testing.assert_allclose(nodes(GiGpo(alike=0.9), tree(long, other, "abyx")) - apart, (0.5, -0.5, 0), atol=1e-12)
    near = nodes(GiGpo(alike=0.75), tree("abcd", "abcx", "abyx"))
    np.testing.assert_allclose(near - apart, (0.5, -0.5, 0), atol=1e-12)
    np.testing.assert_allclose(nodes(GiGpo(alike=0.75), tree("abcx", "abcd", "abyx")), 2 * apart)
    np.testing.assert_allclose(nodes(GiGpo(alike=0.5), tree("abcd", "abcx", "abyx")), 2 * apart)
    with pytest.raises(ValueError, match=r"alike 1.5 must be a number from 0 to 1"):
        GiGpo(alike=1.5)


def test_gigpo_compares_what_the_environment_said_token_by_token() -> None:
    def path(answer: int, reward: float) -> Twig:
        return chain(Twig(), Twig(kind="tool", tokens=3, word=5), Twig(kind="tool", word=answer), leaf(reward))

    tree = planted([path(1, 1), path(2, 0)])
    equal, near = nodes(GiGpo(gamma=1.0), tree), nodes(GiGpo(gamma=1.0, alike=0.75), tree)
    np.testing.assert_allclose(equal[3::4], (0.5, -0.5))
    np.testing.assert_allclose(near[3::4], (1, -1))


@pytest.mark.parametrize(
    ("made", "discounted"),
    [(PorTool, (0.7071, -0.7071)), (GiGpo, (0.025, -0.025)), (Hgpo, (1, -1))],
)
def test_a_discount_prefers_the_shorter_of_two_right_paths(made: Any, discounted: Any) -> None:
    """γ = .95, one step or two: the first steps return 1 and .95; without a discount there is nothing to learn."""
    tree = planted([leaf(1), chain(Twig(), Twig(kind="tool"), leaf(1))])
    np.testing.assert_allclose(nodes(made(), tree)[:2], discounted, atol=1e-4)
    assert not made().estimate(group(tree.view)).skip
    assert made(gamma=1.0).estimate(group(tree.view)).skip == "zero variance"


def test_states_must_be_named_everywhere_or_nowhere() -> None:
    with pytest.raises(InvalidInput, match="needs 'state' on every step"):
        GiGpo().estimate(group(planted([leaf(1, named={"state": "A"}), leaf(0)]).view))


def hgpo_tree() -> Planted:
    """Returns .8 .9 1 in A B S; .2 .3 .4 in A B S; .5 .9 in C S, at γ = .95."""

    def rewards(*returns: float) -> list[float]:
        return [a - 0.95 * b for a, b in zip(returns, (*returns[1:], 0.0), strict=True)]

    return planted(
        [states("ABS", rewards(0.8, 0.9, 1)), states("ABS", rewards(0.2, 0.3, 0.4)), states("CS", rewards(0.5, 0.9))]
    )


def test_hgpo() -> None:
    found = nodes(Hgpo(), hgpo_tree())
    np.testing.assert_allclose(found, (1, 1, 0.9753, -1, -1, -1.0882, 0, 0.508), atol=5e-4)
    centred = nodes(Hgpo(scale="mean"), hgpo_tree())
    np.testing.assert_allclose([centred[i] for i in (2, 5, 7)], (0.2852, -0.3148, 0.1333), atol=1e-4)


def test_hgpo_without_history_is_gigpos_step_term() -> None:
    grove = plant(group(hgpo_tree().view))
    seen = episodes.episodes(grove, 0.95)
    np.testing.assert_allclose(
        Hgpo(history=0, scale="mean").values(seen), stats.centred(seen.return_R, seen.state_R), atol=1e-6
    )


def test_hgpo_with_histories_that_all_differ_looks_at_the_state_alone() -> None:
    """Card 50: k = 1 is all there is to compare."""
    tree = planted([states("AS", (0, 1)), states("BS", (0, 0.25)), states("CS", (0, 0.5))])
    for scale in ("mean", "mean_std"):
        np.testing.assert_allclose(nodes(Hgpo(scale=scale), tree), nodes(Hgpo(history=0, scale=scale), tree), atol=1e-6)
    assert nodes(Hgpo(), tree)[1] != 0


def test_hgpos_power_does_not_matter_where_all_groups_say_the_same() -> None:
    """Card 50: trajectories in the same states; with others beside them it matters."""
    same = planted([states("ABS", (0, 0, 1)), states("ABS", (0, 0, 0.25)), states("ABS", (0, 0, 0))])
    by_power = [nodes(Hgpo(power=power, scale="mean"), same) for power in (0.0, 1.0, 3.0)]
    np.testing.assert_allclose(by_power[1:], by_power[:1] * 2, atol=1e-6)
    apart = np.subtract(nodes(Hgpo(power=3.0, scale="mean"), hgpo_tree()), nodes(Hgpo(scale="mean"), hgpo_tree()))
    assert np.abs(apart).max() > 0.005


def test_branch_depth() -> None:
    tree = planted([Twig([leaf(1), leaf(0)]), Twig([leaf(0.5), leaf(0.1)])])
    np.testing.assert_allclose(nodes(BranchDepth(), tree), (0.7071, 1.3198, -0.8799, -0.7071, 0.22, -0.6599), atol=1e-4)


def test_branch_depth_weights_children_by_how_likely_they_were() -> None:
    tree = planted([Twig([leaf(1, logprob=0.2), leaf(0, logprob=0.0)]), leaf(0)])
    grove = plant(group(tree.view))
    np.testing.assert_allclose(BranchDepth("likely").fused(grove, grove.rewards_L)[1], 0.5498, atol=1e-4)


def test_branch_depth_weights_children_that_are_all_unlikely() -> None:
    """exp(100 · −8) is 0 in float64; only differences among siblings count."""
    tree = planted([Twig([leaf(1, logprob=-8.0), leaf(0, logprob=-8.02)]), leaf(0, logprob=-8.0)])
    grove = plant(group(tree.view))
    estimator = BranchDepth("likely", sharpness=100.0)
    share = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(estimator.fused(grove, grove.rewards_L)[1], share, atol=1e-4)
    np.testing.assert_allclose(nodes(estimator, tree), (0.7071, 0.7071, -0.7071, -0.7071), atol=1e-4)
    ended = planted([Twig([leaf(1, logprob=-8.0)], leaf=True, reward=0.25), leaf(0)])
    grove = plant(group(ended.view))
    np.testing.assert_allclose(estimator.fused(grove, grove.rewards_L)[1], 0.25)


def test_branch_depth_counts_a_chain_once() -> None:
    tree = planted([chain(Twig(), Twig(kind="tool"), leaf(1)), leaf(0), leaf(0)])
    np.testing.assert_allclose(nodes(BranchDepth(), tree), (1.1547,) * 3 + (-0.5774,) * 2, atol=1e-4)
