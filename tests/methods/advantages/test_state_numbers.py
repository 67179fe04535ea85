"""Estimators that compare states, against hand-computed numbers of their papers' formulas."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from banyan.credit import stats
from banyan.credit.group_arrays import group_arrays
from banyan.credit.steps import steps_of
from banyan.errors import InvalidInput
from banyan.segment import Finish
from methods.advantages import episodes
from methods.advantages.gigpo import GiGpo
from methods.advantages.grpo import Grpo
from methods.advantages.hgpo import Hgpo
from methods.advantages.portool import PorTool
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


def states(names: str, rewards: Any) -> Twig:
    """Return a chain of actions, each in a named state, with a reward each."""
    created: list[Twig] = []
    for index, (name, reward) in enumerate(zip(names, rewards, strict=True)):
        last = index == len(names) - 1
        created.append(
            Twig(
                leaf=last,
                reward=reward if last else None,
                inner=None if last else reward,
                named={"state": name},
            )
        )
    return chain(*created)


def gigpo_tree() -> Planted:
    return planted([states("ABC", (0, 0, 10)), states("AD", (0, 0))])


def test_gigpo() -> None:
    np.testing.assert_allclose(nodes(GiGpo(), gigpo_tree()), (8.5125, 4, 4, -10.5125, -6))
    scaled = nodes(GiGpo(scale="mean_std"), gigpo_tree())
    np.testing.assert_allclose(
        scaled, (0.7303 + 0.7071, 0.7303, 0.7303, -1.0954 - 0.7071, -1.0954), atol=1e-4
    )
    per_path = nodes(GiGpo(scale="mean_std", rows="episodes"), gigpo_tree())
    np.testing.assert_allclose(per_path[1:3], (0.7071, 0.7071), atol=1e-4)


def test_gigpo_without_its_step_term_on_one_step_is_grpo() -> None:
    rewards = (1, 0, 0, 0)
    np.testing.assert_allclose(
        leaves(GiGpo(step_weight=0, scale="mean_std"), flat(rewards)), leaves(Grpo(), flat(rewards))
    )


def test_gigpo_where_no_state_comes_again_is_its_episode_term() -> None:
    """GiGPO, arXiv 2505.10978: a group of one state has a step term of 0."""
    tree = planted([states("ABC", (0, 0, 10)), states("DE", (0, 0))])
    for scale in ("mean", "mean_std"):
        np.testing.assert_array_equal(
            nodes(GiGpo(scale=scale), tree), nodes(GiGpo(scale=scale, step_weight=0), tree)
        )
    assert nodes(GiGpo(), tree) == pytest.approx([4, 4, 4, -6, -6])


def test_gigpo_reads_the_state_that_the_environment_says() -> None:
    def path(answer: int, reward: float) -> Twig:
        return chain(Twig(), Twig(kind="tool", word=answer), leaf(reward))

    tree = planted([path(1, 1), path(1, 0), path(2, 0)])
    result = nodes(GiGpo(gamma=1.0), tree)
    third = 1 / 3
    np.testing.assert_allclose(
        result[0::3], (4 * third, -2 * third, -2 * third)
    )  # all in the prompt's state
    np.testing.assert_allclose(result[2::3], (2 * third + 0.5, -third - 0.5, -third))


def test_gigpo_may_take_states_that_are_alike_for_one() -> None:
    """The first state with the required difflib ratio is taken (GiGPO, arXiv 2505.10978).

    The ratio of "abcd" and "abcx" is .75; of "abyx" it is .75 to the second, .5 to the first.
    """

    def tree(*names: str) -> Planted:
        return planted(
            [leaf(r, named={"state": name}) for r, name in zip((1, 0, 0), names, strict=True)]
        )

    third = 1 / 3
    apart = np.array([2 * third, -third, -third])
    np.testing.assert_allclose(nodes(GiGpo(), tree("abcd", "abcx", "abyx")), apart)
    long = "".join(np.random.default_rng(0).choice(list("abcdefghij"), 300))
    other = "".join("." if i % 25 == 0 else letter for i, letter in enumerate(long))
    np.testing.assert_allclose(
        nodes(GiGpo(alike=0.9), tree(long, other, "abyx")) - apart, (0.5, -0.5, 0), atol=1e-12
    )
    near = nodes(GiGpo(alike=0.75), tree("abcd", "abcx", "abyx"))
    np.testing.assert_allclose(near - apart, (0.5, -0.5, 0), atol=1e-12)
    np.testing.assert_allclose(nodes(GiGpo(alike=0.75), tree("abcx", "abcd", "abyx")), 2 * apart)
    np.testing.assert_allclose(nodes(GiGpo(alike=0.5), tree("abcd", "abcx", "abyx")), 2 * apart)
    with pytest.raises(ValueError, match=r"alike 1.5 must be a number from 0 to 1"):
        GiGpo(alike=1.5)


def test_gigpo_compares_what_the_environment_said_token_by_token() -> None:
    def path(answer: int, reward: float) -> Twig:
        return chain(
            Twig(),
            Twig(kind="tool", tokens=3, word=5),
            Twig(kind="tool", word=answer),
            leaf(reward),
        )

    tree = planted([path(1, 1), path(2, 0)])
    equal, near = nodes(GiGpo(gamma=1.0), tree), nodes(GiGpo(gamma=1.0, alike=0.75), tree)
    np.testing.assert_allclose(equal[3::4], (0.5, -0.5))
    np.testing.assert_allclose(near[3::4], (1, -1))


@pytest.mark.parametrize(
    ("made", "discounted"),
    [(PorTool, (0.7071, -0.7071)), (GiGpo, (0.025, -0.025)), (Hgpo, (1, -1))],
)
def test_a_discount_prefers_the_shorter_of_two_right_paths(made: Any, discounted: Any) -> None:
    """With γ = .95 the first steps return 1 and .95; without a discount there is nothing to
    learn."""
    tree = planted([leaf(1), chain(Twig(), Twig(kind="tool"), leaf(1))])
    np.testing.assert_allclose(nodes(made(), tree)[:2], discounted, atol=1e-4)
    assert not made().estimate(group(tree.view)).skip
    assert made(gamma=1.0).estimate(group(tree.view)).skip == "zero variance"


def test_states_must_be_named_everywhere_or_nowhere() -> None:
    with pytest.raises(InvalidInput, match="needs 'state' on every step"):
        GiGpo().estimate(group(planted([leaf(1, named={"state": "A"}), leaf(0)]).view))


def hgpo_tree() -> Planted:
    """Return returns .8 .9 1 in A B S; .2 .3 .4 in A B S; .5 .9 in C S, at γ = .95."""

    def rewards(*returns: float) -> list[float]:
        return [a - 0.95 * b for a, b in zip(returns, (*returns[1:], 0.0), strict=True)]

    return planted(
        [
            states("ABS", rewards(0.8, 0.9, 1)),
            states("ABS", rewards(0.2, 0.3, 0.4)),
            states("CS", rewards(0.5, 0.9)),
        ]
    )


def test_hgpo() -> None:
    result = nodes(Hgpo(), hgpo_tree())
    np.testing.assert_allclose(result, (1, 1, 0.9753, -1, -1, -1.0882, 0, 0.508), atol=5e-4)
    centred = nodes(Hgpo(scale="mean"), hgpo_tree())
    np.testing.assert_allclose(
        [centred[i] for i in (2, 5, 7)], (0.2852, -0.3148, 0.1333), atol=1e-4
    )


def test_hgpo_without_history_is_gigpos_step_term() -> None:
    arrays = group_arrays(group(hgpo_tree().view))
    observed = episodes.episodes(arrays, 0.95)
    np.testing.assert_allclose(
        Hgpo(history=0, scale="mean").values(observed),
        stats.centred(observed.return_R, observed.state_R),
        atol=1e-6,
    )


def test_hgpo_with_histories_that_all_differ_looks_at_the_state_alone() -> None:
    """Only groups of k = 1 have anything to compare."""
    tree = planted([states("AS", (0, 1)), states("BS", (0, 0.25)), states("CS", (0, 0.5))])
    for scale in ("mean", "mean_std"):
        np.testing.assert_allclose(
            nodes(Hgpo(scale=scale), tree), nodes(Hgpo(history=0, scale=scale), tree), atol=1e-6
        )
    assert nodes(Hgpo(), tree)[1] != 0


def test_hgpos_power_does_not_matter_where_all_groups_say_the_same() -> None:
    """The trajectories have the same states; with others beside them the power matters."""
    same = planted(
        [states("ABS", (0, 0, 1)), states("ABS", (0, 0, 0.25)), states("ABS", (0, 0, 0))]
    )
    by_power = [nodes(Hgpo(power=power, scale="mean"), same) for power in (0.0, 1.0, 3.0)]
    np.testing.assert_allclose(by_power[1:], by_power[:1] * 2, atol=1e-6)
    apart = np.subtract(
        nodes(Hgpo(power=3.0, scale="mean"), hgpo_tree()), nodes(Hgpo(scale="mean"), hgpo_tree())
    )
    assert np.abs(apart).max() > 0.005


def test_hgpo_leaves_a_step_out_of_groups_that_are_longer_than_its_path() -> None:
    """Behind A the two B have no third state: their weights are 2 and 3, and none of 4."""
    tree = planted([states("AB", (0, 1)), states("AB", (0, 0)), states("CDB", (0, 0, 1))])
    result = nodes(Hgpo(scale="mean"), tree)
    a, b = (2 / 3 + 3 / 2) / 5, (-4 / 3 - 3 / 2) / 5
    np.testing.assert_allclose([result[1], result[3], result[6]], (a, b, 1 / 3), atol=1e-4)


def test_what_an_environment_said_in_parts_is_one_text_in_their_order() -> None:
    said = (Twig(kind="tool", tokens=3, word=5), Twig(kind="tool", word=1))
    steps, _ = steps_of(planted([chain(Twig(), *said, leaf(1))]).view)
    wanted = np.array([5, 5, 5, 1], np.int32).tobytes()
    assert [step.observed for step in steps if step.observed] == [wanted]


@pytest.mark.parametrize(("ends", "expected"), [(False, [1 + 2 + 0.5 * 4, 4]), (True, [1 + 2 + 3])])
def test_an_answer_is_in_the_time_of_an_action_with_a_reward_of_its_own(
    ends: bool, expected: list[float]
) -> None:
    call = Twig(inner=1.0, finish=Finish.TOOL_CALL)
    answer = leaf(2.0 + 3.0, kind="tool") if ends else Twig(kind="tool")
    made = planted([chain(call, answer, *([] if ends else [leaf(2.0 + 4.0)]))])
    made.view.facts = replace(made.view.facts, earned={made.segments[2].id: 2.0})
    rows = episodes.episodes(group_arrays(group(made.view), rewarded=True), 0.5)
    np.testing.assert_allclose(rows.return_R, expected)
