"""Weighted means: hand-computed ones, equal weights as no weights, and what a weight may be."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan import reward
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_loader.load import parse
from banyan.v1 import tree_pb2
from banyan.wire.weights import weights_of

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ({"a": 1.0, "b": 0.0}, {"a": 3.0}, 0.75),  # (3·1 + 1·0) / 4
        ({"a": 0.5, "b": 0.25, "c": 1.0}, {"a": 2.0, "b": 1.0, "c": 0.5}, 0.5),  # 1.75 / 3.5
        ({"a": 1.0, "b": 1.0, "c": 0.0}, {"b": 0.5, "c": -1.0}, 1.0),  # 1.5 / 1.5, no penalty
        ({"a": 1.0, "b": 0.4}, {"a": 1.0, "b": -0.5}, 0.8),  # (1 − 0.2) / 1
        ({"a": 0.0, "b": 1.0}, {"a": 2.0, "b": -3.0}, -1.5),  # −3 / 2
        ({"a": 2 / 3, "b": 1 / 3}, {"a": 1.0, "b": 2.0}, (2 / 3 + 2 * (1 / 3)) / 3),
    ],
)
def test_hand_computed_rewards(
    values: dict[str, float], weights: dict[str, float], expected: float
) -> None:
    scores = [("leaf", scorer, value) for scorer, value in values.items()]
    assert reward.rewards(scores, len(values), weights)["leaf"] == pytest.approx(
        expected, abs=1e-15
    )
    assert reward.rewards(reversed(scores), len(values), weights) == reward.rewards(
        scores, len(values), weights
    )


@given(st.lists(FINITE, min_size=1, max_size=5), st.floats(0.001, 1000.0))
def test_equal_weights_give_the_bits_of_the_plain_mean(values: list[float], weight: float) -> None:
    scores = [("leaf", str(index), value) for index, value in enumerate(values)]
    weights = {str(index): weight for index in range(len(values))}
    assert reward.rewards(scores, len(values), weights) == {"leaf": reward.mean(values)}
    ignored = [*scores, ("leaf", "watched", 17.0)]
    assert reward.rewards(ignored, len(ignored), weights | {"watched": 0.0}) == {
        "leaf": reward.mean(values)
    }


@given(st.lists(st.tuples(FINITE, st.floats(0.001, 1000.0)), min_size=1, max_size=5))
def test_a_weighted_mean_lies_within_its_values(pairs: list[tuple[float, float]]) -> None:
    values = {str(index): value for index, (value, _) in enumerate(pairs)}
    weights = {str(index): weight for index, (_, weight) in enumerate(pairs)}
    result = reward.weighted(values, weights)
    slack = 1e-12 * max(map(abs, values.values()))
    assert min(values.values()) - slack <= result <= max(values.values()) + slack


def test_a_penalty_beyond_all_floats_is_the_largest_one() -> None:
    most = sys.float_info.max
    assert reward.weighted({"a": -most, "b": most}, {"a": 1.0, "b": -1000.0}) == -most


def test_a_scorer_of_weight_0_must_score_but_may_find_a_leaf_unscorable() -> None:
    weights = {"watched": 0.0}
    scores = [("leaf", "number", 1.0), ("leaf", "watched", None)]
    assert reward.rewards(scores[:1], 2, weights) == {}, "its score is owed like any other"
    assert reward.rewards(scores, 2, weights) == {"leaf": 1.0}
    assert reward.rewards(scores, 2) == {"leaf": None}


RECIPE = """
name: weighted
model: SmolLM2-135M-Instruct
task: {name: arithmetic}
filter:
  - {name: number, weight: 2}
  - {name: length, settings: {most: 100}, weight: -0.5}
"""


def test_a_recipe_names_weights_and_equal_ones_are_none() -> None:
    recipe = parse(RECIPE)
    assert recipe.scorer_weights == recipe.eval_weights == [2.0, -0.5]
    assert parse(RECIPE, ["filter.1.weight=2"]).scorer_weights == []
    measured = parse(RECIPE, ["eval.filter=[{name: number}, {name: format, weight: 0}]"])
    assert (measured.scorer_weights, measured.eval_weights) == ([2.0, -0.5], [1.0, 0.0])
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("filter.0.weight=0", "no scorer has a weight above 0"),
        ("filter.1.weight=1e-9", "1e-09 must be 0, or between 0.001 and 1000"),
        ("filter.1.weight=-2000", "-2000.0 must be 0, or between 0.001 and 1000"),
        ("filter.1.weight=.inf", "finite"),
        ("filter.1.weight=heavy", "filter.1.weight"),
        ("eval.filter=[{name: number, weight: -1}]", "no scorer has a weight above 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(override: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(RECIPE, [override])
    assert message in str(refused.value)


@pytest.mark.parametrize("weights", [[1.0], [0.0, -1.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_a_spec_with_other_weights_is_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidInput, match="weights"):
        weights_of(tree_pb2.TreeSpec(scorers=["a", "b"], scorer_weights=weights))
