"""rose by numbers (arXiv 2601.05053): the score, the arg-max, restarts, and iid at its limit."""

import math
from dataclasses import replace

import numpy as np
import pytest

from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import Branch, GrowthBudget
from banyan.segment import Finish
from banyan.signals import Signals, Wanted
from methods.generate.iid import Iid
from methods.generate.rose import Rose, scores
from tests.methods.generate.forests import ROSE, Hand, Signalling, asked
from tests.rollout.growing import ENDING, engine, grow, shape, spec

HALF = math.log(0.5)


def signals(entropies, semantics):
    """Return signals of tokens with two likeliest tokens of these entropies (0 or ln 2), and
    these F."""
    rows = [[HALF, HALF] if h else [0.0, -math.inf] for h in entropies]
    return Signals(
        np.zeros((len(rows), 2), np.int32), np.array(rows).reshape(-1, 2), np.array(semantics)
    )


def plan(policy, hand, seed=7, **room):
    return policy.plan(hand.view(), GrowthBudget(**room), Draws(seed))


@pytest.mark.parametrize("cosine,score", [(1, -0.3466), (0, 0.0), (-1, 0.3466)])
def test_two_equal_alternatives_score_by_what_they_mean(cosine, score):
    semantic = 2 * 0.5 * 0.5 * cosine  # Σ_{i≠j} p_i p_j cos
    item = signals([1], [semantic])
    assert scores(item, "cosine-entropy", 1)[0] == pytest.approx(score, abs=5e-4)
    assert scores(item, "cosine", 1)[0] == -semantic
    assert scores(item, "entropy", 1)[0] == pytest.approx(math.log(2), abs=5e-4)


def test_entropy_is_not_renormalised():
    rows = np.log(np.array([[0.25, 0.25]]))  # half of the mass lies elsewhere
    assert scores(Signals(np.zeros((1, 2)), rows), "entropy", 1)[0] == pytest.approx(
        -0.5 * math.log(0.25), rel=1e-3
    )


def test_a_sure_token_beats_a_choice_among_synonyms():
    both = signals([1, 0], [0.5, 0.0])
    assert (
        scores(both, "cosine-entropy", 2).argmax() == 1 and scores(both, "entropy", 2).argmax() == 0
    )


def test_the_token_with_the_largest_score_of_all_rollouts_is_sampled_again():
    hand, policy = Hand(), Rose(width=4, epsilon=0.0)
    first = hand.put(
        hand.start(), [-1.0] * 5, signals=signals([1] * 5, [0.5, 0.0, -0.1, -0.3, 0.2])
    )
    assert asked(plan(policy, hand), hand.tree) == {Branch(first.id, 3, 1): 7}
    second = hand.put(
        Branch(first.id, 3, 1), [-1.0] * 3, signals=signals([1] * 3, [-0.3, -0.4, -0.2])
    )
    assert asked(plan(policy, hand), hand.tree) == {Branch(second.id, 1, 2): 6}
    hand.put(
        Branch(second.id, 1, 2), [-1.0], signals=signals([1], [-0.4])
    )  # the same place again: visited
    assert asked(plan(policy, hand), hand.tree) == {Branch(second.id, 2, 3): 5}


def test_the_published_code_chooses_the_same_token_again():
    hand, policy = Hand(), Rose(width=3, epsilon=0.0, revisit=True)
    first = hand.put(hand.start(), [-1.0] * 3, signals=signals([1] * 3, [0.1, -0.3, 0.2]))
    hand.put(Branch(first.id, 1, 1), [-1.0] * 2, signals=signals([1] * 2, [-0.3, -0.2]))
    assert asked(plan(policy, hand), hand.tree) == {Branch(first.id, 1, 2): 9}
    assert (
        asked(plan(Rose(width=3, epsilon=0.0), hand), hand.tree)
        .keys()
        .isdisjoint({Branch(first.id, 1, 2)})
    )


def test_the_first_one_wins_a_tie():
    hand = Hand()
    first = hand.put(hand.start(), [-1.0] * 4, signals=signals([1] * 4, [0.1, -0.3, -0.3, -0.3]))
    assert set(asked(plan(Rose(width=2, epsilon=0.0), hand), hand.tree)) == {Branch(first.id, 1, 1)}


def test_the_first_token_may_be_sampled_again_once():
    hand, policy = Hand(), Rose(width=3, epsilon=0.0)
    hand.put(hand.start(), [-1.0], signals=signals([1], [-0.5]))
    assert asked(plan(policy, hand), hand.tree) == {hand.start(1): 10}
    hand.put(hand.start(1), [-1.0], signals=signals([1], [-0.5]))
    assert asked(plan(policy, hand), hand.tree) == {hand.start(2): 10}, (
        "no token is left, so it starts at the prompt"
    )


def test_the_place_of_a_first_token_is_one_for_all_rollouts():
    hand, policy = Hand(), Rose(width=3, epsilon=0.0)
    hand.put(hand.start(), [-1.0] * 2, signals=signals([1] * 2, [-0.5, 0.5]))
    second = hand.put(hand.start(1), [-1.0] * 2, signals=signals([1] * 2, [-0.5, 0.4]))
    assert set(asked(plan(policy, hand), hand.tree)) == {Branch(second.id, 1, 2)}


# a choice of meaning, then synonyms without end, which are less sure
SIGNS = {"": {"x": 1.0}, "xx": {"+": 0.7, "-": 0.3}} | {c: {"a": 0.5, "A": 0.5} for c in "+-aA"}


def test_at_equal_leaves_answers_differ_more_than_by_entropy_alone():
    """The arg-max of entropy branches among synonyms, and its leaves all mean the same (ROSE)."""
    result = {}
    for metric in ("entropy", "cosine-entropy"):
        of = {"width": 8, "epsilon": 0.0, "metric": metric}
        trees = [grow(spec(ROSE, of, 12, seed), engine({"chain": SIGNS}))[0] for seed in range(12)]
        assert all(len(tree.leaves) == 8 for tree in trees)
        result[metric] = np.mean(
            [len({tree.completion(leaf)[2] for leaf in tree.leaves}) for tree in trees]
        )
    assert result["entropy"] == 1.0 and result["cosine-entropy"] > 1.8, result


def test_epsilon_one_asks_for_what_iid_asks():
    hand = Hand()
    for room in (GrowthBudget(), GrowthBudget(max_leaves=3)):
        rose, iid = (
            policy.plan(hand.view(), room, Draws(7)) for policy in (Rose(epsilon=1.0), Iid())
        )
        assert rose.expansions == iid.expansions and len(rose.expansions) in (8, 3)
    trees = [
        grow(spec(name, {"width": 8, **more}, 9), engine(ENDING))[0]
        for name, more in ((ROSE, {"epsilon": 1.0}), ("iid", {}))
    ]
    assert shape(trees[0]) == shape(trees[1])


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.5, 1.0])
def test_a_rollout_starts_at_the_prompt_with_probability_epsilon(epsilon):
    hand = Hand()
    hand.put(hand.start(), [-1.0] * 3, signals=signals([1] * 3, [0.1, -0.3, 0.2]))
    starts = [
        hand.start(1) in asked(plan(Rose(width=2, epsilon=epsilon), hand, seed), hand.tree)
        for seed in range(400)
    ]
    assert abs(sum(starts) / 400 - epsilon) < (0.08 if 0 < epsilon < 1 else 1e-9)


def test_starts_at_the_prompt_wait_for_nobody():
    hand, policy = Hand(), Rose(width=8, epsilon=0.5)
    starts = {
        hand.start(i) for i in range(8) if i == 0 or Draws(7).uniform("rose.restart", i) < 0.5
    }
    assert 2 < len(starts) < 8 and set(asked(plan(policy, hand), hand.tree)) == starts


@pytest.mark.parametrize(
    "metric,top,semantic", [("entropy", 20, 0), ("cosine", 0, 20), ("cosine-entropy", 20, 20)]
)
def test_only_the_signals_of_the_metric_are_asked_for_also_after_a_cut(metric, top, semantic):
    hand = Hand()
    head = hand.put(hand.start(), [-1.0] * 2, Finish.ABORTED, signals=signals([1] * 2, [0.0] * 2))
    created = {e.branch: e.signals for e in plan(Rose(metric=metric, epsilon=0.0), hand).expansions}
    assert created == {Branch(head.id, 2, 0): Wanted(top, semantic)}


def test_an_engine_without_signals_is_refused_by_name():
    with pytest.raises(InvalidInput, match="needs the signals of metric 'cosine-entropy'"):
        grow(spec(ROSE, {"epsilon": 0.0}, 9), _Mute(engine(ENDING)))


class _Mute(Signalling):
    def _signalled(self, one):
        return replace(one, signals=Signals())


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"epsilon": 1.5}, "epsilon must lie in 0..1, got 1.5"),
        ({"metric": "kl"}, "metric must be one of entropy, cosine, cosine-entropy"),
        ({"top": 21}, "top must be at most 20, got 21"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(settings, message):
    with pytest.raises(ValueError, match=message):
        Rose(**settings)
