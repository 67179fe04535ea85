"""Estimators against hand-computed numbers of their papers' formulas."""

from typing import Any

import numpy as np
import pytest

from banyan import registry
from banyan.credit import stats
from banyan.credit.group_arrays import group_arrays
from banyan.credit.whitening import whiten
from banyan.errors import InvalidInput
from banyan.view import TreeView
from methods.advantages import episodes, otr, overlong, sage_skill, xrpo
from methods.advantages.dapo import Dapo
from methods.advantages.grpo import Grpo
from methods.advantages.mc_grpo import McGrpo, centred_on_median
from methods.advantages.tree_grpo import TreeGrpo
from tests.methods.advantages.planting import Twig, chain, flat, group, leaf, leaves, nodes, planted


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
    np.testing.assert_allclose(
        np.abs(leaves(Grpo(epsilon=1e-4), flat((1, 0, 0, 1)))), np.full(4, 0.8659), atol=5e-5
    )


def test_reinforce_pp_is_whitened_over_tokens() -> None:
    reward_L = leaves(by_name("reinforce++"), flat((1, 0, 0, 0)))
    np.testing.assert_allclose(
        whiten(reward_L, np.full(4, 1e7)), (1.7321, -0.5774, -0.5774, -0.5774), atol=1e-4
    )


@pytest.mark.parametrize(
    ("rewards", "before", "after"),
    [
        ((0.2, 0.9, 0.4), (-0.995, 2.4876, 0), (-1.4925, 3.7313, np.nan)),
        (
            (1, 0.9, 0.1, 0, 0),
            (8.911, 7.921, 0, -0.990, -0.990),
            (11.139, 9.901, np.nan, -1.2376, -1.2376),
        ),
        ((1, 0, 0), (1000, 0, 0), (3000, np.nan, 0)),
        ((1, 0, 1, 0, 1), (0, -1000, 0, -1000, 0), (np.nan, -2500, 0, -2500, 0)),
    ],
)
def test_mc_grpo(rewards: Any, before: Any, after: Any) -> None:
    reward_L = np.array(rewards, float)
    moved = sum(x != 0 for x in before)
    np.testing.assert_allclose(
        centred_on_median(reward_L, 1e-3) * moved / len(rewards), before, rtol=1e-3
    )
    np.testing.assert_allclose(leaves(McGrpo(floor=0.0), flat(rewards)), after, rtol=1e-3)


@pytest.mark.parametrize(
    "rewards",
    [(1, 0, 0), (1, 0, 1, 0, 1), (0, 0, 0, 0, 0, 0, 0, 1), (1, 1, 1, 0, 0, 0, 0), (3, 5, 3)],
)
def test_mc_grpos_advantages_of_two_rewards_have_a_mean_size_of_one(rewards: Any) -> None:
    """GRPO's have 2 √(p (1 − p)), at most 1. With `floor: 0` it is 1000."""
    size = np.abs(centred_on_median(np.array(rewards, float), 1e-3, McGrpo().floor)).mean()
    assert size == pytest.approx(1, abs=0.005)


def test_half_of_the_range_is_more_than_any_median_of_distances() -> None:
    rng = np.random.default_rng(0)
    for count in (2, 3, 4, 5, 8, 9, 17):
        for reward_L in (
            *rng.random((200, count)),
            *rng.integers(0, 3, (200, count)).astype(float),
        ):
            distance_L = np.abs(reward_L - stats.lower_median(reward_L))
            assert stats.lower_median(distance_L) <= np.ptp(reward_L) / 2 + 1e-12


def test_mc_grpo_keeps_the_sign_that_an_outlier_takes_from_the_mean() -> None:
    rewards = (0.4, 0.5, 0.6, 3.0, 0.45)
    assert leaves(Grpo(scale="none"), flat(rewards[:4]))[2] < 0
    assert stats.lower_median(np.array(rewards)) == 0.5
    assert (
        leaves(McGrpo(), flat(rewards))[2] > 0 and leaves(McGrpo(floor=0.0), flat(rewards))[2] > 0
    )


@pytest.mark.parametrize("most", [2, 4, 8])
def test_mc_grpo_teaches_with_all_leaves_but_one(most: int) -> None:
    """Of G + 1 rewards G carry gradient, also if several equal the median or the number is even."""
    rng = np.random.default_rng(most)
    for rewards in (
        rng.random(most + 1),
        np.arange(most + 1) % 2,
        rng.integers(0, 2, 4 * most + 1),
    ):
        assert np.isfinite(leaves(McGrpo(), flat(rewards.tolist()))).sum() == len(rewards) - 1


def test_the_median_finds_signs_that_the_mean_of_few_skewed_rewards_loses() -> None:
    """Of log-normal rewards, G = 2, 4, 8, the sign is compared with that of infinitely many
    samples.

    With the mean .715, .818 and .875 of them agree, with the median .876, .892 and .909 (MC-GRPO,
    arXiv 2601.22582).
    """
    rng, gaps = np.random.default_rng(0), []
    for most in (2, 4, 8):
        drawn = rng.lognormal(size=(2000, most + 1))
        mean = np.mean(
            [np.sign(stats.centred(r[:most])) == np.sign(r[:most] - np.exp(0.5)) for r in drawn]
        )
        result = np.array([centred_on_median(r, 1e-3) for r in drawn])
        gaps.append(np.mean((np.sign(result) == np.sign(drawn - 1.0))[result != 0]) - mean)
    assert gaps[0] > gaps[1] + 0.04 > gaps[2] + 0.06 and gaps[2] > 0.01, gaps


def test_mc_grpo_with_a_floor_is_bounded() -> None:
    np.testing.assert_allclose(leaves(McGrpo(floor=0.1), flat((1, 0, 0))), (3 / 0.101, np.nan, 0))


def test_tree_grpo() -> None:
    trees = flat((1, 0, 0)), flat((1, 1, 0), b"u" * 32)
    np.testing.assert_allclose(
        leaves(Grpo(), *trees), (0.9129, -0.9129, -0.9129, 0.9129, 0.9129, -0.9129), atol=1e-4
    )
    intra = (1.1547, -0.5773, -0.5773, 0.5773, 0.5773, -1.1547)
    np.testing.assert_allclose(leaves(TreeGrpo("tree"), *trees), intra, atol=1e-4)
    both = (2.0676, -1.4902, -1.4902, 1.4902, 1.4902, -2.0676)
    np.testing.assert_allclose(leaves(TreeGrpo(), *trees), both, atol=1e-4)
    np.testing.assert_allclose(leaves(TreeGrpo("nested"), *trees), intra, atol=1e-4)


def test_xrpo() -> None:
    likely, right = np.array([-0.3, -0.5, -0.6, -0.4]), np.array([True, True, False, False])
    result = xrpo.novel(np.array([1.0, 1.0, -1.0, -1.0]), likely, right)
    np.testing.assert_allclose(result, (1, 1.1219, -1, -1), atol=1e-4)
    assert (xrpo.novel(np.ones(4), likely * 9, right) <= 1.5).all()


def test_xrpo_on_a_tree() -> None:
    view = planted(
        [
            leaf(1, logprob=-0.25),
            leaf(1, logprob=-0.75),
            leaf(0, logprob=-0.5),
            leaf(0, logprob=-0.5),
        ]
    ).view
    base = leaves(Grpo(), view)
    bonus = 2.5 * (1 - np.exp(-0.25))
    np.testing.assert_allclose(
        leaves(by_name("xrpo"), view), base + np.array([0, min(bonus, 0.5 * base[0]), 0, 0])
    )


def test_sage_skill_rewards() -> None:
    table = np.array([(1, 1, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1), (0, 0, 0), (0, 0, 1)], float).T
    item, two = sage_skill.chained(*table)
    np.testing.assert_array_equal(item, (2, 1, 0, 1, 0, 0))
    np.testing.assert_array_equal(two, (2, 1, 2, 0, 0, 0))


def test_sage_skill() -> None:
    def item(r1: float, r2: float, used: float) -> Twig:
        return chain(Twig(inner=r1), Twig(kind="tool"), leaf(r2, parts={"used": used}))

    tree = planted(
        [item(1, 1, 1), item(1, 1, 0), item(0, 0, 0), item(1, 0, 0)]
    )  # R1 = 2 1 0 1, R2 = 2 1 0 0
    result = nodes(by_name("sage-skill"), tree)
    np.testing.assert_allclose(result[0::3], (1, 0, -1, 0))
    np.testing.assert_allclose(result[2::3], (1.25, 0.25, -0.75, -0.75))


def test_sage_skill_refuses_what_it_lacks() -> None:
    with pytest.raises(InvalidInput, match="one place with a reward of its own"):
        by_name("sage-skill").estimate(group(flat((1, 0))))
    with pytest.raises(InvalidInput, match="needs the part 'used'"):
        by_name("sage-skill").estimate(group(planted([chain(Twig(inner=1), leaf(1))]).view))


def test_otr() -> None:
    logprob = np.log([0.7, 0.2, 0.1])
    np.testing.assert_allclose(otr.softened(logprob), (0.6229, 0.2376, 0.1394), atol=1e-4)
    for beta, loss, direction in (
        (0, 0.3825, (-0.1663, 0.1901, -0.0238)),
        (-0.1, 0.3281, (-0.1753, 0.2054, -0.0301)),
    ):
        assert otr.expected_loss(logprob, 1, beta) == pytest.approx(loss, abs=1e-4)
        result = otr.ascent(logprob, otr.expected_weights(logprob, 1, beta))
        np.testing.assert_allclose(result, direction, atol=1e-4)


def test_otrs_draws_go_to_the_closed_form() -> None:
    logprob, rng = np.log([0.7, 0.2, 0.1]), np.random.default_rng(0)
    share = otr.softened(logprob)
    drawn = [otr.weights(rng.choice(3, 256, p=share), 1, -0.1, 3) for _ in range(200)]
    losses = [-(w * logprob).sum() for w in drawn]
    error = np.std(losses) / np.sqrt(len(losses))
    assert np.mean(losses) == pytest.approx(otr.expected_loss(logprob, 1, -0.1), abs=4 * error)


def test_otrs_counts_are_its_samples() -> None:
    """−1/K Σ_j R(a_j) log π(a_j) over the draws equals the same by counts (OTR, arXiv
    2509.26313)."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        logprob = np.log(rng.dirichlet(np.ones(7)))
        drawn = rng.choice(7, 64, p=otr.softened(logprob))
        by_sample = -np.mean([(1.0 if a == 2 else -0.1) * logprob[a] for a in drawn])
        assert -(otr.weights(drawn, 2, -0.1, 7) * logprob).sum() == pytest.approx(
            by_sample, rel=1e-12
        )


def test_otr_without_punishment_or_softening_is_dft() -> None:
    """β = 0, κ = 1 and K → ∞ give −π(label) log π(label), and its gradient with π(label) held."""
    logprob = np.log([0.7, 0.2, 0.1])
    for label, share in enumerate((0.7, 0.2, 0.1)):
        assert otr.expected_loss(logprob, label, 0.0, kappa=1.0) == pytest.approx(
            -share * np.log(share), rel=1e-12
        )
        result = otr.ascent(logprob, otr.expected_weights(logprob, label, 0.0, kappa=1.0))
        np.testing.assert_allclose(result, share * (np.eye(3)[label] - np.exp(logprob)), atol=1e-12)


def test_otr_does_not_mind_which_wrong_token_is_which() -> None:
    """Wrong tokens that are drawn equally often change places."""
    logprob, drawn = np.log([0.1, 0.4, 0.2, 0.3]), np.array([0, 0, 0, 1, 1, 2, 2, 3, 3])
    loss = -(otr.weights(drawn, 0, -0.1, 4) * logprob).sum()
    for order in ((0, 2, 3, 1), (0, 3, 2, 1), (0, 1, 3, 2)):
        assert -(otr.weights(drawn, 0, -0.1, 4) * logprob[list(order)]).sum() == pytest.approx(
            loss, rel=1e-12
        )


def test_otr_takes_the_right_leaves_as_labels() -> None:
    np.testing.assert_array_equal(
        leaves(by_name("otr"), flat((1, 0, None, 0.5))), (1, np.nan, np.nan, 1)
    )


def test_echo_shapes_within_a_fifth_and_never_flips_a_sign() -> None:
    estimator = by_name("echo")
    views = [
        planted(
            [leaf(1, tokens=3, logprob=-0.1), leaf(0, tokens=2, logprob=-3.0), leaf(0, word=4)]
        ).view
    ]
    factors = np.concatenate(estimator.factors(views)[0])
    assert factors.min() >= 0.8 and factors.max() <= 1.2 and np.ptp(factors) > 0.05
    inside = by_name("echo", bound=100.0)
    trained = np.concatenate(
        [f for f, n in zip(inside.factors(views)[0], views[0].nodes, strict=True) if n.trained]
    )
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
    np.testing.assert_allclose(
        overlong.penalty(np.array([80.0, 90, 100, 200]), 100, 20), (0, -0.5, -1, -1)
    )


def test_dapo_adds_the_penalty_but_leaves_constant_groups_out() -> None:
    long = planted([leaf(1, tokens=10), leaf(1, tokens=9), leaf(0, tokens=1)]).view
    np.testing.assert_allclose(
        leaves(Dapo(longest=10, buffer=2), long), leaves(Grpo(), flat((0, 0.5, 0))), atol=1e-9
    )
    constant = planted([leaf(1, tokens=10), leaf(1, tokens=1)]).view
    assert Dapo(longest=10, buffer=2).estimate(group(constant)).skip == "zero variance"
    assert not Dapo(longest=10, buffer=2, dynamic_sampling=False).estimate(group(constant)).skip


def test_the_learner_multiplies_each_token_by_its_factor() -> None:
    from banyan.credit.estimate import Credit, over_batch
    from services.learner.packing import shaping, unroll
    from services.learner.packing.loss_targets import PATHS

    view = planted([leaf(1, tokens=3, logprob=-0.1), leaf(0, tokens=2, logprob=-3.0, word=4)]).view
    estimator = by_name("echo")
    created = Credit(group(view), estimator.estimate(group(view)))
    shaped = over_batch([created], estimator)[0].advantages
    assert shaped.factor_G_N_T is not None
    plain = unroll.unroll(view, [0, 1], shaped.leaf_G_L[0], None, b"now")
    piece = shaping.shaped(plain, view, [0, 1], shaped.factor_G_N_T[0], PATHS)
    factors = estimator.factors([view])[0]
    for index, path in enumerate(piece.paths):
        np.testing.assert_allclose(
            path.advantage_T, shaped.leaf_G_L[0][index] * factors[view.leaf_node_L[index]]
        )
    assert (
        np.ptp(piece.paths[0].advantage_T) == 0
        and piece.paths[0].advantage_T[0] != plain.paths[0].advantage_T[0]
    )


def test_an_answer_that_is_a_step_of_its_own_takes_no_time() -> None:
    tree = planted([Twig([Twig([leaf(1)], kind="tool"), Twig([leaf(0)], kind="tool")])])
    observed = episodes.episodes(group_arrays(group(tree.view)), 0.5)
    np.testing.assert_allclose(observed.return_R, (0.5, 1, 0, 0))
