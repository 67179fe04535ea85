"""Estimators against the hand-computed numbers of their method cards."""

from typing import Any

import numpy as np
import pytest

from banyan import registry
from banyan.errors import InvalidInput
from banyan.segment import Finish
from banyan.view import TreeView
from services.learner.advantages import episodes, otr, overlong, pool, sage_skill, stats, xrpo
from services.learner.advantages.branch_depth import BranchDepth
from services.learner.advantages.gigpo import GiGpo
from services.learner.advantages.grove import plant
from services.learner.advantages.grpo import Grpo
from services.learner.advantages.hgpo import Hgpo
from services.learner.advantages.mars2 import Mars2
from services.learner.advantages.mc_grpo import McGrpo, centred_on_median
from services.learner.advantages.overlong import Dapo
from services.learner.advantages.portool import PorTool
from services.learner.advantages.rose import Rose, longer
from services.learner.advantages.tree_grpo import TreeGrpo
from services.learner.advantages.treeps import TreePS
from services.learner.advantages.treerl import TreeRL
from services.learner.advantages.whitening import whiten
from tests.advantages.planting import Planted, Twig, chain, flat, group, leaf, planted, value_of


def leaves(estimator: Any, *views: TreeView) -> np.ndarray:
    return np.concatenate(estimator.estimate(group(*views)).leaf_G_L)


def nodes(estimator: Any, tree: Planted, *others: Planted) -> list[float]:
    """The advantage of each segment of the first tree but its prompt."""
    found = estimator.estimate(group(tree.view, *(o.view for o in others))).node_G_N
    return [value_of(tree, found[0], i) for i in range(1, len(tree.segments))]


def by_name(name: str, **settings: Any) -> Any:
    return registry.build("optimise", name, settings)


@pytest.mark.parametrize(
    ("name", "rewards", "expected"),
    [
        ("grpo", (1, 0, 0, 0), (1.5, -0.5, -0.5, -0.5)),
        ("grpo", (1, 0, 0, 1), (0.8660, -0.8660, -0.8660, 0.8660)),
        ("dr-grpo", (1, 0, 0, 0), (0.75, -0.25, -0.25, -0.25)),
        ("rloo", (1, 0, 0, 0), (1, -0.3333, -0.3333, -0.3333)),
        ("reinforce++", (1, 0, 0, 0), (1, 0, 0, 0)),
        ("reinforce++-baseline", (1, 0, 0, 0), (0.75, -0.25, -0.25, -0.25)),
    ],
)
def test_the_table_of_baselines(name: str, rewards: Any, expected: Any) -> None:
    np.testing.assert_allclose(leaves(by_name(name), flat(rewards)), expected, atol=1e-4)


def test_trl_adds_more_to_the_deviation() -> None:
    np.testing.assert_allclose(np.abs(leaves(Grpo(epsilon=1e-4), flat((1, 0, 0, 1)))), np.full(4, 0.8659), atol=5e-5)


def test_reinforce_pp_is_whitened_over_tokens() -> None:
    reward_L = leaves(by_name("reinforce++"), flat((1, 0, 0, 0)))
    np.testing.assert_allclose(whiten(reward_L, np.full(4, 1e7)), (1.7321, -0.5774, -0.5774, -0.5774), atol=1e-4)


@pytest.mark.parametrize(
    ("rewards", "before", "after"),
    [
        ((0.2, 0.9, 0.4), (-0.995, 2.4876, 0), (-1.4925, 3.7313, np.nan)),
        ((1, 0.9, 0.1, 0, 0), (8.911, 7.921, 0, -0.990, -0.990), (11.139, 9.901, np.nan, -1.2376, -1.2376)),
        ((1, 0, 0), (1000, 0, 0), (3000, np.nan, 0)),
        ((1, 0, 1, 0, 1), (0, -1000, 0, -1000, 0), (np.nan, -2500, 0, -2500, 0)),
    ],
)
def test_mc_grpo(rewards: Any, before: Any, after: Any) -> None:
    reward_L = np.array(rewards, float)
    moved = sum(x != 0 for x in before)
    np.testing.assert_allclose(centred_on_median(reward_L, 1e-3) * moved / len(rewards), before, rtol=1e-3)
    np.testing.assert_allclose(leaves(McGrpo(), flat(rewards)), after, rtol=1e-3)


def test_mc_grpo_keeps_the_sign_that_an_outlier_takes_from_the_mean() -> None:
    rewards = (0.4, 0.5, 0.6, 3.0, 0.45)
    assert leaves(Grpo(scale="none"), flat(rewards[:4]))[2] < 0
    assert stats.lower_median(np.array(rewards)) == 0.5
    assert leaves(McGrpo(), flat(rewards))[2] > 0


def test_mc_grpo_with_a_floor_is_bounded() -> None:
    np.testing.assert_allclose(leaves(McGrpo(floor=0.1), flat((1, 0, 0))), (3 / 0.101, np.nan, 0))


def test_tree_grpo() -> None:
    trees = flat((1, 0, 0)), flat((1, 1, 0), b"u" * 32)
    np.testing.assert_allclose(leaves(Grpo(), *trees), (0.9129, -0.9129, -0.9129, 0.9129, 0.9129, -0.9129), atol=1e-4)
    intra = (1.1547, -0.5773, -0.5773, 0.5773, 0.5773, -1.1547)
    np.testing.assert_allclose(leaves(TreeGrpo("tree"), *trees), intra, atol=1e-4)
    both = (2.0676, -1.4902, -1.4902, 1.4902, 1.4902, -2.0676)
    np.testing.assert_allclose(leaves(TreeGrpo(), *trees), both, atol=1e-4)
    np.testing.assert_allclose(leaves(TreeGrpo("nested"), *trees), intra, atol=1e-4)


def bushy() -> Planted:
    """root → a (1), root → b → (0, 1)."""
    return planted([leaf(1), Twig([leaf(0), leaf(1)])])


@pytest.mark.parametrize(
    ("discount", "expected"), [("none", (1.0, -0.5, -1.75, 1.25)), ("sqrt", (1.0, -0.3536, -1.8232, 1.1768))]
)
def test_treerl(discount: str, expected: Any) -> None:
    np.testing.assert_allclose(nodes(TreeRL(discount), bushy()), expected, atol=1e-4)


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


def test_gigpo_reads_the_state_that_the_environment_says() -> None:
    def path(answer: int, reward: float) -> Twig:
        return chain(Twig(), Twig(kind="tool", word=answer), leaf(reward))

    tree = planted([path(1, 1), path(1, 0), path(2, 0)])
    found = nodes(GiGpo(gamma=1.0), tree)
    third = 1 / 3
    np.testing.assert_allclose(found[0::3], (4 * third, -2 * third, -2 * third))  # all in the prompt's state
    np.testing.assert_allclose(found[2::3], (2 * third + 0.5, -third - 0.5, -third))


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


def test_branch_depth() -> None:
    tree = planted([Twig([leaf(1), leaf(0)]), Twig([leaf(0.5), leaf(0.1)])])
    np.testing.assert_allclose(nodes(BranchDepth(), tree), (0.7071, 1.3198, -0.8799, -0.7071, 0.22, -0.6599), atol=1e-4)


def test_branch_depth_weights_children_by_how_likely_they_were() -> None:
    tree = planted([Twig([leaf(1, logprob=0.2), leaf(0, logprob=0.0)]), leaf(0)])
    grove = plant(group(tree.view))
    np.testing.assert_allclose(BranchDepth("likely").fused(grove, grove.rewards_L)[1], 0.5498, atol=1e-4)


def test_branch_depth_counts_a_chain_once() -> None:
    tree = planted([chain(Twig(), Twig(kind="tool"), leaf(1)), leaf(0), leaf(0)])
    np.testing.assert_allclose(nodes(BranchDepth(), tree), (1.1547,) * 3 + (-0.5774,) * 2, atol=1e-4)


def test_xrpo() -> None:
    likely, right = np.array([-0.3, -0.5, -0.6, -0.4]), np.array([True, True, False, False])
    found = xrpo.novel(np.array([1.0, 1.0, -1.0, -1.0]), likely, right)
    np.testing.assert_allclose(found, (1, 1.1219, -1, -1), atol=1e-4)
    assert (xrpo.novel(np.ones(4), likely * 9, right) <= 1.5).all()


def test_xrpo_on_a_tree() -> None:
    view = planted([leaf(1, logprob=-0.25), leaf(1, logprob=-0.75), leaf(0, logprob=-0.5), leaf(0, logprob=-0.5)]).view
    base = leaves(Grpo(), view)
    bonus = 2.5 * (1 - np.exp(-0.25))
    np.testing.assert_allclose(leaves(by_name("xrpo"), view), base + np.array([0, min(bonus, 0.5 * base[0]), 0, 0]))


def test_sage_skill_rewards() -> None:
    table = np.array([(1, 1, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1), (0, 0, 0), (0, 0, 1)], float).T
    one, two = sage_skill.chained(*table)
    np.testing.assert_array_equal(one, (2, 1, 0, 1, 0, 0))
    np.testing.assert_array_equal(two, (2, 1, 2, 0, 0, 0))


def test_sage_skill() -> None:
    def item(r1: float, r2: float, used: float) -> Twig:
        return chain(Twig(inner=r1), Twig(kind="tool"), leaf(r2, parts={"used": used}))

    tree = planted([item(1, 1, 1), item(1, 1, 0), item(0, 0, 0), item(1, 0, 0)])  # R1 = 2 1 0 1, R2 = 2 1 0 0
    found = nodes(by_name("sage-skill"), tree)
    np.testing.assert_allclose(found[0::3], (1, 0, -1, 0))
    np.testing.assert_allclose(found[2::3], (1.25, 0.25, -0.75, -0.75))


def test_sage_skill_refuses_what_it_lacks() -> None:
    with pytest.raises(InvalidInput, match="one place with a reward of its own"):
        by_name("sage-skill").estimate(group(flat((1, 0))))
    with pytest.raises(InvalidInput, match="needs the part 'used'"):
        by_name("sage-skill").estimate(group(planted([chain(Twig(inner=1), leaf(1))]).view))


def test_otr() -> None:
    logprob = np.log([0.7, 0.2, 0.1])
    np.testing.assert_allclose(otr.softened(logprob), (0.6229, 0.2376, 0.1394), atol=1e-4)
    for beta, loss, direction in ((0, 0.3825, (-0.1663, 0.1901, -0.0238)), (-0.1, 0.3281, (-0.1753, 0.2054, -0.0301))):
        assert otr.expected_loss(logprob, 1, beta) == pytest.approx(loss, abs=1e-4)
        found = otr.ascent(logprob, otr.expected_weights(logprob, 1, beta))
        np.testing.assert_allclose(found, direction, atol=1e-4)


def test_otrs_draws_go_to_the_closed_form() -> None:
    logprob, rng = np.log([0.7, 0.2, 0.1]), np.random.default_rng(0)
    share = otr.softened(logprob)
    drawn = [otr.weights(rng.choice(3, 256, p=share), 1, -0.1, 3) for _ in range(200)]
    losses = [-(w * logprob).sum() for w in drawn]
    error = np.std(losses) / np.sqrt(len(losses))
    assert np.mean(losses) == pytest.approx(otr.expected_loss(logprob, 1, -0.1), abs=4 * error)


def test_otr_takes_the_right_leaves_as_labels() -> None:
    np.testing.assert_array_equal(leaves(by_name("otr"), flat((1, 0, None, 0.5))), (1, np.nan, np.nan, 1))


def test_echo_shapes_within_a_fifth_and_never_flips_a_sign() -> None:
    estimator = by_name("echo")
    views = [planted([leaf(1, tokens=3, logprob=-0.1), leaf(0, tokens=2, logprob=-3.0), leaf(0, word=4)]).view]
    factors = np.concatenate(estimator.factors(views)[0])
    assert factors.min() >= 0.8 and factors.max() <= 1.2 and np.ptp(factors) > 0.05
    inside = by_name("echo", bound=100.0)
    trained = np.concatenate([f for f, n in zip(inside.factors(views)[0], views[0].nodes, strict=True) if n.trained])
    assert trained.mean() == pytest.approx(1, abs=1e-9)  # the whitened signals have mean 0
    with pytest.raises(InvalidInput, match="echo needs the entropy of every sampled token"):
        estimator.estimate(group(without_entropies(flat((1, 0)))))


def without_entropies(view: TreeView) -> TreeView:
    from dataclasses import replace

    from banyan.tree import Leaf, Tree

    none = np.zeros(0, np.float32)
    tree = Tree(view.tree.tree_id, (replace(s, entropies_T=none) for s in view.tree))
    return TreeView(tree, view.leaves_L, {Leaf(*(x.segment, x.end)): 1.0 for x in view.leaves_L})


def test_overlong() -> None:
    np.testing.assert_allclose(overlong.penalty(np.array([80.0, 90, 100, 200]), 100, 20), (0, -0.5, -1, -1))


def test_dapo_adds_the_penalty_but_leaves_constant_groups_out() -> None:
    long = planted([leaf(1, tokens=10), leaf(1, tokens=9), leaf(0, tokens=1)]).view
    np.testing.assert_allclose(leaves(Dapo(longest=10, buffer=2), long), leaves(Grpo(), flat((0, 0.5, 0))), atol=1e-9)
    constant = planted([leaf(1, tokens=10), leaf(1, tokens=1)]).view
    assert Dapo(longest=10, buffer=2).estimate(group(constant)).skip == "zero variance"
    assert not Dapo(longest=10, buffer=2, dynamic_sampling=False).estimate(group(constant)).skip


def test_a_stored_success_teaches_a_group_that_failed() -> None:
    views = [planted([leaf(0, step=9 - i) for i in range(4)], bytes([t]) * 32).view for t in range(2)]
    assert pool.failed(group(*views)) and not pool.failed(group(flat((0, 1))))
    stored = planted([leaf(1), leaf(0)], b"s" * 32).view
    made = pool.with_success(group(*views), stored, stored.leaves_L[0])
    found = Grpo().estimate(made).leaf_G_L
    assert np.isnan(found[0][3]), "the oldest leaf gave its place"
    np.testing.assert_allclose(found[2], (2.475,), atol=1e-3)
    np.testing.assert_allclose((*found[0][:3], *found[1]), np.full(7, -0.3536), atol=1e-4)


def test_the_learner_multiplies_each_token_by_its_factor() -> None:
    from services.learner import paths, shaping
    from services.learner.credit import Credit, over_batch
    from services.learner.taught import PATHS

    view = planted([leaf(1, tokens=3, logprob=-0.1), leaf(0, tokens=2, logprob=-3.0, word=4)]).view
    estimator = by_name("echo")
    made = Credit(group(view), estimator.estimate(group(view)))
    shaped = over_batch([made], estimator)[0].advantages
    assert shaped.factor_G_N_T is not None
    plain = paths.unroll(view, [0, 1], shaped.leaf_G_L[0], None, b"now")
    piece = shaping.shaped(plain, view, [0, 1], shaped.factor_G_N_T[0], PATHS)
    factors = estimator.factors([view])[0]
    for index, path in enumerate(piece.paths):
        np.testing.assert_allclose(path.advantage_T, shaped.leaf_G_L[0][index] * factors[view.leaf_node_L[index]])
    assert np.ptp(piece.paths[0].advantage_T) == 0 and piece.paths[0].advantage_T[0] != plain.paths[0].advantage_T[0]


def test_an_answer_that_is_a_step_of_its_own_takes_no_time() -> None:
    tree = planted([Twig([Twig([leaf(1)], kind="tool"), Twig([leaf(0)], kind="tool")])])
    seen = episodes.episodes(plant(group(tree.view)), 0.5)
    np.testing.assert_allclose(seen.return_R, (0.5, 1, 0, 0))
