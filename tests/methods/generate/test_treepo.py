"""treepo's rules by numbers (TreePO, arXiv 2508.17445)."""

import math

import numpy as np
import pytest

from banyan.draws import Draws
from methods.generate.treepo import budget, endings
from methods.generate.treepo.policy import TreePO


def test_the_budget_of_a_wave():
    # B = max(P, min(W - F, d·f + d·P))
    assert budget.total(live=2, finished=0, finished_now=0, width=16, divisor=2) == 4
    assert (
        budget.total(live=3, finished=1, finished_now=1, width=16, divisor=2) == 8
    )  # the finished one gives its share
    assert (
        budget.total(live=4, finished=10, finished_now=4, width=16, divisor=2) == 6
    )  # no more than are missing
    assert (
        budget.total(live=6, finished=12, finished_now=0, width=16, divisor=2) == 6
    )  # no path is starved


def test_equal_parts_leave_the_remainder_to_the_last_path():
    assert budget.split(8, None, 4) == [2, 2, 2, 2]
    assert budget.split(11, None, 4) == [2, 2, 2, 5]
    assert budget.split(3, None, 3) == [1, 1, 1]


def test_weighted_parts_give_one_each_and_the_rest_by_largest_remainder():
    assert budget.split(10, [0.5, 0.3, 0.2], 3) == [1 + 4, 1 + 2, 1 + 1]  # 3.5, 2.1, 1.4 of 7
    assert budget.split(5, [0.5, 0.5], 2) == [3, 2]  # a tie goes to the first
    assert budget.split(3, [0.9, 0.05, 0.05], 3) == [1, 1, 1]


def test_unlikely_paths_weigh_more_and_inverse_turns_it_round():
    low_first = budget.weights([-4.0, -2.0], inverse=False, temperature=1.0)
    assert low_first == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))])
    assert budget.weights([-4.0, -2.0], inverse=True, temperature=1.0) == pytest.approx(
        low_first[::-1]
    )
    flat = budget.weights([-4.0, -2.0], inverse=False, temperature=1e6)
    assert flat == pytest.approx([0.5, 0.5], abs=1e-5)


def test_repetition_is_a_piece_of_32_characters_eight_times():
    piece = "abcdefghijklmnopqrstuvwxyz012345"
    assert len(piece) == 32
    assert endings.repeats(piece * 8) and not endings.repeats(piece * 7)
    assert endings.repeats("x" * 39) and not endings.repeats("x" * 38)  # they may overlap
    assert not endings.repeats("")


@pytest.mark.parametrize(
    "facts,finished,reason",
    [
        ({"stopped": True, "full": True, "deep": True}, "eos", "stop"),
        ({"stopped": False, "full": True, "deep": True}, "eos", "length"),
        ({"stopped": False, "full": False, "deep": True}, "eos", "depth"),
        ({"stopped": False, "full": False, "deep": False}, "eos", None),
        ({"stopped": False, "full": False, "deep": False}, "boxed", "finished"),
        ({"stopped": False, "full": False, "deep": False}, "boxed_and_eos", None),
        ({"stopped": True, "full": False, "deep": False}, "boxed_and_eos", "finished"),
    ],
)
def test_endings_are_checked_in_the_cards_order(facts, finished, reason):
    text = r"so \boxed{3}"
    assert (
        endings.ending(lambda: text, "", finished=finished, repetition_first=False, **facts)
        == reason
    )


def test_repetition_comes_last_unless_it_is_asked_for_first():
    loop, facts = "x" * 99, {"stopped": True, "full": False, "deep": False, "finished": "eos"}
    assert endings.ending(lambda: loop, loop, repetition_first=False, **facts) == "stop"
    assert endings.ending(lambda: loop, loop, repetition_first=True, **facts) == "repetition"


def test_cuts_fall_where_the_card_says():
    logprobs = np.array(
        [-1, -1, -5, -1, -1, -1, -1, -1, -1], np.float32
    )  # three blocks of 4, the last of 1
    random = [endings.cut("random", logprobs, 4, Draws(seed), 1) for seed in range(200)]
    assert set(random) == {0, 4, 8} and all(50 < random.count(c) < 85 for c in (0, 4, 8))
    assert endings.cut("argmin_logprob", logprobs, 4, Draws(0), 1) == 2
    assert endings.cut("from_start", logprobs, 4, Draws(0), 1) == 0
    soft = [endings.cut("block_softmax", logprobs, 4, Draws(seed), 1) for seed in range(400)]
    weights = np.exp([2.0, 1.0, 1.0])  # minus the means -2, -1, -1
    assert set(soft) == {0, 4, 8} and abs(soft.count(0) / 400 - weights[0] / weights.sum()) < 0.1


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"segment": 0}, "segment must be a whole number of at least 1, got 0"),
        ({"width": True}, "width must be a whole number of at least 1, got True"),
        ({"width": 2.5}, "width must be a whole number"),
        ({"budget": "fair"}, "budget must be one of fixed_avg"),
        ({"fallback": "middle"}, "fallback must be one of random"),
        ({"weight_temperature": 0.0}, "more than 0"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(settings, message):
    with pytest.raises(ValueError, match=message):
        TreePO(**settings)
