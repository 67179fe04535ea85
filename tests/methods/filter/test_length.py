"""The scorer of lengths: values computed by hand from its formula."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Scored
from methods.filter.length import Length


@pytest.mark.parametrize(
    ("length", "value"),
    [
        (0, 0.0),  # 10 below 10: 1 - 10/4 is below 0
        (6, 0.0),  # 4 below: 1 - 4/4
        (7, 0.25),  # 3 below: 1 - 3/4
        (9, 0.75),
        (10, 1.0),
        (15, 1.0),
        (20, 1.0),
        (21, 0.75),  # 1 above: 1 - 1/4
        (22, 0.5),
        (24, 0.0),
        (1_000_000, 0.0),
    ],
)
def test_the_value_falls_linearly_beyond_both_bounds(length: int, value: float) -> None:
    reward = Length(least=10, most=20, buffer=4).score("x" * length, {})
    assert reward == Scored(value, {"characters": float(length)})
    penalty = Length(least=10, most=20, buffer=4, penalty=True).score("x" * length, {})
    assert penalty == Scored(value - 1, {"characters": float(length)})


@pytest.mark.parametrize(("length", "value"), [(9, 0.0), (10, 1.0), (20, 1.0), (21, 0.0)])
def test_without_a_buffer_an_excess_is_worth_nothing(length: int, value: float) -> None:
    assert Length(least=10, most=20).score("x" * length, {}).value == value


def test_a_penalty_is_that_of_dapo() -> None:
    """With L_max 20480 and L_cache 4096 (section 4.1): 0 up to 16384, -1 from 20480 on."""
    scorer = Length(most=16_384, buffer=4_096, penalty=True)
    lengths = (0, 16_384, 17_408, 18_432, 20_480, 30_000)
    values = [scorer.score("x" * length, {}).value for length in lengths]
    assert values == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]


@pytest.mark.parametrize(
    ("completion", "words", "characters"),
    [
        ("", 0, 0),
        (" \n\t", 0, 3),
        ("one two\nthree", 3, 13),
        ("one,two", 1, 7),
        ("\u4f60\u597d", 1, 2),
        ("\U0001f600 \U0001f600", 2, 3),
        ("e\u0301", 1, 2),
        ("a\0b", 1, 3),
        ("a\u200bb", 1, 3),
        ("a\u00a0b\u2028c", 3, 5),
        ("\ud800 \x1b[0m \u202e", 3, 8),
    ],
)
def test_units(completion: str, words: int, characters: int) -> None:
    by_words = registry.build("filter", "length", {"most": 9, "unit": "words"})
    assert by_words.score(completion, {}).parts == {"words": float(words)}
    assert Length(9).score(completion, {}).parts == {"characters": float(characters)}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({}, "most"),
        ({"most": -1}, "most must be a whole number in 0.*, got -1"),
        ({"most": 1.5}, "most must be a whole number"),
        ({"most": True}, "most must be a whole number"),
        ({"most": 10**400}, "most must be a whole number"),
        ({"most": 9, "buffer": -1}, "buffer must be"),
        ({"most": 9, "least": 10}, "least must not be above most, got least 10 and most 9"),
        ({"most": 9, "unit": "tokens"}, "unit must be characters or words, got 'tokens'"),
        ({"most": 9, "penalty": 1}, "penalty must be true or false, got 1"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        registry.build("filter", "length", bad)


@settings(max_examples=200, deadline=None)
@given(
    st.text(),
    st.tuples(st.integers(0, 2**53), st.integers(0, 2**53)).map(sorted),
    st.integers(0, 2**53),
    st.booleans(),
    st.sampled_from(["characters", "words"]),
)
def test_values_are_finite_and_bounded(
    completion: str, bounds: list[int], buffer: int, penalty: bool, unit: str
) -> None:
    least, most = bounds
    scorer = Length(most, least, buffer, unit, penalty)
    value = scorer.score(completion, {}).value
    assert math.isfinite(value) and -penalty <= value <= 1 - penalty
