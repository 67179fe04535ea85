"""tree-grpo (arXiv 2509.21240): drawable nodes, draws, and the number of leaves."""

from collections import Counter

import pytest

from banyan.draws import Draws
from banyan.plugins import Branch, GrowthBudget
from banyan.segment import Finish
from methods.generate.tree_grpo import TreeGRPO
from tests.methods.generate.forests import TREE_GRPO, Hand, asked
from tests.rollout.growing import ENDLESS, engine, grow, spec


def plan(policy, hand, seed=7, **room):
    return policy.plan(hand.view(), GrowthBudget(**room), Draws(seed))


def test_the_published_defaults_keep_three_leaves():
    policy = TreeGRPO()
    assert (policy.rounds, policy.expansions, policy.width) == (1, 2, 3)
    grower, _ = grow(spec(TREE_GRPO, {"node": 4}, 16), engine(ENDLESS))
    assert len(grower.leaves) == 3


def test_nodes_are_drawn_uniformly_from_the_prompt_and_what_is_no_leaf():
    hand = Hand()
    trunk = hand.put(hand.start(), [-1.0] * 8, Finish.LENGTH)
    places, twice = Counter(), 0
    for seed in range(600):
        drawn = [(b.parent, b.fork) for b in asked(plan(TreeGRPO(node=2), hand, seed), hand.tree)]
        places.update(drawn)
        twice += drawn[0] == drawn[1]
    assert set(places) == {
        (hand.root.id, 2),
        (trunk.id, 2),
        (trunk.id, 4),
        (trunk.id, 6),
    }  # 6..8 is the leaf
    assert (
        all(abs(n - 300) < 65 for n in places.values()) and abs(twice - 150) < 55
    )  # with replacement


def test_what_is_left_of_the_path_is_sampled():
    hand = Hand(12)
    hand.put(hand.start(), [-1.0] * 12, Finish.LENGTH)
    for seed in range(20):
        for branch, most in asked(plan(TreeGRPO(node=5), hand, seed), hand.tree).items():
            assert most == 12 - (0 if branch.parent == hand.root.id else branch.fork) and most in (
                12,
                7,
                2,
            )


def test_a_chain_of_one_node_leaves_the_prompt_alone():
    hand = Hand()
    hand.put(hand.start(), [-1.0] * 4)
    assert set(asked(plan(TreeGRPO(node=4), hand), hand.tree)) == {hand.start(1), hand.start(2)}


def test_a_second_round_also_draws_from_side_branches():
    hand, policy = Hand(20), TreeGRPO(rounds=2, expansions=1, node=2)
    trunk = hand.put(hand.start(), [-1.0] * 3)
    (first,) = asked(plan(policy, hand), hand.tree)
    side = hand.put(first, [-1.0] * 5)
    drawn = {
        (b.parent, b.fork)
        for s in range(80)
        for b in asked(policy.plan(hand.view(), GrowthBudget(), _Fixed(s)), hand.tree)
    }
    assert drawn == {(hand.root.id, 2), (trunk.id, 2), (side.id, 2), (side.id, 4)}


class _Fixed(Draws):
    """Draws whose first round is that of seed 7."""

    def below(self, bound, purpose, *parts, position=0):
        return (
            Draws(7).below(bound, purpose, *parts)
            if parts[0] < 2
            else super().below(bound, purpose, *parts)
        )


def test_a_round_waits_for_the_one_before():
    hand, policy = Hand(), TreeGRPO(rounds=2, expansions=2, node=2)
    assert set(asked(plan(policy, hand), hand.tree)) == {hand.start()}
    hand.put(hand.start(), [-1.0] * 6)
    first = list(asked(plan(policy, hand), hand.tree))
    assert [b.ordinal for b in first] == [1, 2]
    hand.put(first[0], [-1.0] * 3)
    assert list(asked(plan(policy, hand), hand.tree)) == first[1:]
    hand.put(first[1], [-1.0] * 3)
    assert [b.ordinal for b in asked(plan(policy, hand), hand.tree)] == [3, 4]


def test_nodes_of_a_cut_chain_lie_where_they_would_have():
    hand = Hand()
    head = hand.put(hand.start(), [-1.0] * 3, Finish.ABORTED)
    tail = hand.put(Branch(head.id, 3, 0), [-1.0] * 5, Finish.LENGTH)
    drawn = {
        (b.parent, b.fork)
        for s in range(80)
        for b in asked(plan(TreeGRPO(node=2), hand, s), hand.tree)
    }
    assert drawn == {(hand.root.id, 2), (head.id, 2), (tail.id, 1), (tail.id, 3)}


@pytest.mark.parametrize(
    "settings", [{"node": 0}, {"expansions": 0}, {"rounds": -1}, {"rounds": 1.0}]
)
def test_bad_settings_are_refused_with_the_reason(settings):
    with pytest.raises(ValueError, match="must be a whole number of at least"):
        TreeGRPO(**settings)
