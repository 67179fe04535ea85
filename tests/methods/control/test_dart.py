"""DART (card 47): rollouts by success rate, length by the longest success."""

from typing import Any

import numpy as np
import pytest

from banyan.draws import Draws
from banyan.plugins import Budget, PromptStats
from methods.control.dart import Dart, rollouts
from methods.control.uniform import Uniform
from services.gateway.allocation.history import History
from tests.gateway.simulated_rows import SimulatedRows


@pytest.mark.parametrize(
    ("rate", "count"), [(0, 8), (0.5, 8), (0.6, 8), (0.65, 7), (0.7, 6), (0.75, 5), (0.8, 4), (0.85, 3), (0.9, 2), (1.0, 2)]
)
def test_rollouts_of_the_card(rate: float, count: int) -> None:
    assert rollouts(rate, 8, 0.6, 2) == count


def _after(rewards: list[float], lengths: list[int], curriculum: Dart | None = None, limit: int = 128):
    history = History(0.5)
    history.record_allocation(0, 0)
    history.record_outcome(0, 0, rewards, lengths)
    budget = Budget(range(1, 2), 1, 8, 1, limit, {"width": 8})
    (given,) = (curriculum or Dart()).allocate(PromptStats([{}], [""], history.stats), budget, Draws(0))
    return given


def test_a_row_gets_what_its_past_asks_for() -> None:
    three_of_four = _after([1, 1, 1, 0], [10, 30, 20, 90])
    assert three_of_four.settings == {"width": 5} and three_of_four.max_new_tokens == 30
    assert three_of_four.why == "success rate 0.75: 5 rollouts of at most 30 tokens, as its longest success"
    failed = _after([0, 0], [10, 90])
    assert failed.settings == {"width": 8} and failed.max_new_tokens is None
    assert _after([1, 1], [10, 90], Dart(slack=1.5), 100).max_new_tokens is None, "never more than the recipe allows"
    assert _after([1, 1], [10, 40], Dart(slack=1.5)).max_new_tokens == 60
    assert _after([1, 1], [10, 40], Dart(caps=False)).max_new_tokens is None
    trees = _after([1, 1], [3, 4], Dart(setting="trees"))
    assert trees.trees == 2 and not trees.settings


def test_rows_come_in_the_order_of_uniform() -> None:
    prompts, budget = PromptStats([{}] * 20, [""] * 20), Budget(range(50), 0, 8, 1, 128)
    dart, uniform = (c.allocate(prompts, budget, Draws(3)) for c in (Dart(), Uniform()))
    assert [a.row for a in dart] == [a.row for a in uniform]
    assert {a.why for a in dart} == {"never sampled: 8 rollouts"}


def test_the_average_falls_where_rows_are_mastered_and_lengths_never_exceed_a_success() -> None:
    rates = np.random.default_rng(0).beta(4, 2, 64)
    world = SimulatedRows(Dart(), [""] * 64, rates)
    for _ in range(32):
        world.step()
    widths = [a.settings["width"] for a in world.allocations]
    assert np.mean(widths[:64]) == 8 and 4.5 < np.mean(widths[64:]) < 6.5
    for allocation in world.allocations[64:]:
        longest = world.history.stats[allocation.row].longest_success
        assert allocation.max_new_tokens is None or allocation.max_new_tokens <= longest


@pytest.mark.parametrize("settings", [{"least": 9}, {"mastered": 1.0}, {"slack": 0.5}])
def test_settings_that_make_no_sense_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Dart(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"right": "x"}, "right must be a finite number, got 'x'"),
        ({"right": float("nan")}, "right must be a finite number, got nan"),
        ({"rollouts": 4.5}, "rollouts must be a whole number in 1..1024, got 4.5"),
        ({"rollouts": 2000}, "rollouts must be a whole number in 1..1024, got 2000"),
        ({"slack": float("inf")}, "slack must be a finite number"),
        ({"setting": 3}, "setting must name a setting"),
        ({"caps": "no"}, "caps must be true or false"),
    ],
)
def test_settings_have_types_and_bounds(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Dart(**settings)
