"""treepo-eager: shares that go down the tree, exactly W leaves, and treepo's tree without early
ends."""

import pytest

from banyan.draws import Draws
from banyan.plugins import Branch, GrowthBudget
from banyan.segment import Finish, Kind
from methods.generate.treepo.eager import TreePOEager
from methods.generate.treepo.policy import TreePO
from tests.methods.generate.forests import EAGER, Hand, asked
from tests.rollout.growing import ENDLESS, TREEPO, engine, grow, spec


def plan(policy, hand, seed=7, **room):
    return policy.plan(hand.view(), GrowthBudget(**room), Draws(seed))


def sampled(grower):
    return sum(len(s) for s in grower.tree if s.kind is Kind.POLICY)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_a_full_binary_tree_samples_what_its_closed_form_says(depth):
    s, width = 3, 2**depth
    grower, _ = grow(
        spec(EAGER, {"segment": s, "max_depth": depth, "width": width}, s * depth), engine(ENDLESS)
    )
    assert len(grower.leaves) == width
    assert sampled(grower) == s * (2 ** (depth + 1) - 2)


@pytest.mark.parametrize("depth,divisor", [(6, 2), (8, 3), (14, 4)])
def test_while_no_path_ends_early_it_samples_as_much_as_treepo(depth, divisor):
    settings = {"segment": 2, "max_depth": depth, "width": 16, "divisor": divisor}
    eager, waves = (
        grow(spec(name, settings, 2 * depth), engine(ENDLESS))[0] for name in (EAGER, TREEPO)
    )
    assert sampled(eager) <= sampled(waves) and len(eager.leaves) == len(waves.leaves) == 16
    if divisor == 2:
        assert sampled(eager) == sampled(waves)


def test_the_prompt_shares_its_leaves_out():
    hand = Hand()
    assert set(asked(plan(TreePOEager(segment=2, width=16, divisor=2), hand), hand.tree)) == {
        hand.start(0),
        hand.start(8),
    }
    three = asked(plan(TreePOEager(segment=2, width=11, divisor=3), hand), hand.tree)
    assert set(three) == {hand.start(0), hand.start(3), hand.start(6)}  # 3, 3 and 5
    assert set(asked(plan(TreePOEager(segment=2, width=2, divisor=4), hand), hand.tree)) == {
        hand.start(0),
        hand.start(1),
    }


def test_a_path_goes_on_while_its_sibling_still_runs():
    hand, policy = Hand(), TreePOEager(segment=2, width=8)
    first = hand.put(hand.start(0), [-1.0] * 2, Finish.BOUNDARY)
    assert set(asked(plan(policy, hand), hand.tree)) == {
        hand.start(4),
        Branch(first.id, 2, 0),
        Branch(first.id, 2, 2),
    }
    assert not asked(plan(TreePO(segment=2, width=8), hand), hand.tree).keys() & {
        Branch(first.id, 2, 0)
    }


def test_a_path_that_ends_is_cut_for_the_rest_of_its_share():
    hand, policy = Hand(), TreePOEager(segment=2, width=8, fallback="argmin_logprob")
    first = hand.put(hand.start(0), [-1.0, -3.0], Finish.STOP)
    wanted = asked(plan(policy, hand), hand.tree)
    assert wanted == {
        hand.start(4): 2,
        Branch(first.id, 1, 1): 2,
        Branch(first.id, 1, 2): 2,
    }  # of three: one and two
    assert [mark.reason for mark in plan(policy, hand).leaves] == ["stop"]


def test_a_path_that_ran_out_of_room_starts_again_at_the_prompt():
    hand, policy = Hand(2), TreePOEager(segment=2, width=8)
    hand.put(hand.start(0), [-1.0] * 2, Finish.LENGTH)
    assert set(asked(plan(policy, hand), hand.tree)) == {
        hand.start(4),
        hand.start(1),
        hand.start(2),
    }


def test_a_share_of_one_neither_branches_nor_starts_again():
    hand, policy = Hand(), TreePOEager(segment=2, width=2)
    first = hand.put(hand.start(0), [-1.0] * 2, Finish.BOUNDARY)
    hand.put(hand.start(1), [-1.0], Finish.STOP)
    assert set(asked(plan(policy, hand), hand.tree)) == {Branch(first.id, 2, 0)}


def test_bad_settings_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="segment must be a whole number of at least 1, got 0"):
        TreePOEager(segment=0)
    with pytest.raises(ValueError, match="fallback must be one of random"):
        TreePOEager(fallback="middle")
