"""eptree (TreeRL, arXiv 2506.11902): the forked tokens, their number, and the number of leaves."""

import pytest

from banyan.draws import Draws
from banyan.plugins import Branch, GrowthBudget
from banyan.segment import Finish
from methods.generate.eptree import EPTree
from tests.methods.generate.forests import EPTREE, Hand, asked
from tests.rollout.growing import ENDING, ENDLESS, engine, grow, spec

CHAIN = [-0.1, -2.0, -0.3, -3.0, -0.2, -2.5]


def plan(policy, hand, **room):
    return policy.plan(hand.view(), GrowthBudget(**room), Draws(7))


def test_the_published_defaults_give_thirty_leaves():
    policy = EPTree()
    assert (policy.chains, policy.forks, policy.rounds, policy.continuations, policy.width) == (
        6,
        2,
        1,
        2,
        30,
    )
    grower, _ = grow(spec(EPTREE, {}, 20), engine(ENDING))
    assert len(grower.leaves) == 30 and len(grower.tree.children[grower.tree.root.id]) >= 6


@pytest.mark.parametrize("m,n,length,t", [(6, 2, 1, 2), (4, 2, 2, 1), (1, 3, 2, 2), (8, 1, 0, 1)])
def test_leaves_are_m_times_one_plus_l_n_t(m, n, length, t):
    settings = {"chains": m, "forks": n, "rounds": length, "continuations": t}
    grower, _ = grow(spec(EPTREE, settings, 9), engine(ENDLESS))
    assert len(grower.leaves) == m * (1 + length * n * t)


def test_the_least_likely_tokens_are_sampled_again():
    hand = Hand()
    trunk = hand.put(hand.start(), CHAIN)
    first = plan(EPTree(chains=1), hand)
    assert asked(first, hand.tree) == {
        Branch(
            trunk.id, 3, 1
        ): 7,  # −3.0: its own place, so its prefix is three tokens and seven are left
        Branch(trunk.id, 3, 2): 7,
        Branch(trunk.id, 5, 3): 5,
        Branch(trunk.id, 5, 4): 5,
    }
    assert [mark.leaf.end for mark in first.leaves] == [6] and not first.done


def test_a_tree_does_not_wait_for_another():
    hand = Hand()
    hand.put(hand.start(0), CHAIN)
    missing = asked(plan(EPTree(chains=2), hand), hand.tree)
    assert hand.start(1) in missing and sum(b.parent != hand.root.id for b in missing) == 4


def test_the_first_token_of_a_side_branch_is_not_forked_again():
    hand, policy = Hand(), EPTree(chains=1, forks=1, rounds=2, continuations=1)
    trunk = hand.put(hand.start(), CHAIN)
    side = hand.put(Branch(trunk.id, 3, 1), [-9.0, -0.5, -2.9])
    assert list(asked(plan(policy, hand), hand.tree)) == [
        Branch(side.id, 2, 2)
    ]  # −2.9, neither −9.0 nor −3.0 again


def test_nothing_after_a_masked_word_is_forked():
    hand = Hand(40)
    text = "so the ANSWER is 12"
    surprisals = [-1.0] * 19
    # 14 comes after the word's last letter, 12 is it
    surprisals[2] = -2.0
    surprisals[12] = -3.0
    surprisals[14] = -9.0
    trunk = hand.put(hand.start(), surprisals, text=text)
    wanted = asked(plan(EPTree(chains=1), hand), hand.tree)
    assert {(b.parent, b.fork) for b in wanted} == {(trunk.id, 12), (trunk.id, 2)}
    free = asked(plan(EPTree(chains=1, masked=()), hand), hand.tree)
    assert {b.fork for b in free} == {14, 12}


def test_a_word_is_found_by_its_share_of_the_text():
    hand = Hand(40)
    trunk = hand.put(
        hand.start(), [-1.0, -1.0, -2.0, -9.0, -9.0], text="xx conclusion xx xx "
    )  # five tokens, one the end
    assert {b.fork for b in asked(plan(EPTree(chains=1, forks=1), hand), hand.tree)} == {2}
    assert len(trunk) == 5


def test_a_first_token_may_be_forked_and_meets_no_chain():
    hand = Hand()
    for ordinal in range(2):
        hand.put(hand.start(ordinal), [-5.0, -1.0])
    missing = asked(plan(EPTree(chains=2, forks=1), hand), hand.tree)
    assert set(missing) == {hand.start(i) for i in (2, 3, 4, 5)} and set(missing.values()) == {10}


def test_short_chains_fork_what_they_have_until_the_budget_is_used():
    hand = Hand()
    hand.put(hand.start(), [-1.0])
    policy = EPTree(chains=1, forks=2, rounds=2, continuations=2)
    for round_ in range(2):
        missing = asked(plan(policy, hand), hand.tree)
        assert set(missing) == {hand.start(1 + 4 * round_ + i) for i in range(4)}
        for branch in missing:
            hand.put(branch, [-1.0])
    assert plan(policy, hand).done and len(plan(policy, hand).leaves) == 9


def test_a_cut_chain_is_one_chain():
    hand = Hand()
    head = hand.put(hand.start(), CHAIN[:4], Finish.ABORTED)
    rest = Branch(head.id, 4, 0)
    assert asked(plan(EPTree(chains=1), hand), hand.tree) == {rest: 6}
    tail = hand.put(rest, CHAIN[4:])
    assert {(b.parent, b.fork) for b in asked(plan(EPTree(chains=1), hand), hand.tree)} == {
        (head.id, 3),
        (tail.id, 1),
    }


def test_a_narrow_room_shares_the_rest_among_the_chains():
    hand = Hand()
    for ordinal in range(2):
        hand.put(hand.start(ordinal), CHAIN)
    assert len(asked(plan(EPTree(chains=2), hand, max_leaves=5), hand.tree)) == 3
    assert not asked(plan(EPTree(chains=6), hand, max_leaves=2), hand.tree)


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"chains": 0}, "chains must be a whole number of at least 1, got 0"),
        ({"rounds": -1}, "rounds must be a whole number of at least 0"),
        ({"forks": True}, "forks must be a whole number"),
        ({"masked": "answer"}, "masked must be a list of words, got 'answer'"),
        ({"masked": [""]}, "masked must be a list of words"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(settings, message):
    with pytest.raises(ValueError, match=message):
        EPTree(**settings)
