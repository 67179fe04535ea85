"""Likeness of token runs, by the numbers of method card 7 and against plain tables."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods.generate.latr.similarity import (
    common_subsequence,
    edit_distance,
    rouge_l,
    suffix_score,
)

RUNS = st.lists(st.integers(0, 4), max_size=12)


def table(a, b, subsequence=False):
    """Edit distance or common subsequence, row by row."""
    row = [0 if subsequence else j for j in range(len(b) + 1)]
    for i, x in enumerate(a, 1):
        new = [0 if subsequence else i]
        for j, y in enumerate(b, 1):
            if subsequence:
                new.append(row[j - 1] + 1 if x == y else max(row[j], new[-1]))
            else:
                new.append(min(row[j - 1] + (x != y), row[j] + 1, new[-1] + 1))
        row = new
    return row[-1]


def subruns(a):
    return {tuple(a[i:j]) for i in range(len(a) + 1) for j in range(i, len(a) + 1)}


@given(RUNS, RUNS)
def test_they_equal_the_plain_tables(a, b):
    assert edit_distance(a, b) == edit_distance(b, a) == table(a, b)
    assert common_subsequence(a, b) == table(a, b, subsequence=True)
    longest = max(k for x, y in ((a, b), (b, a)) for k in range(len(x) + 1) if tuple(x[len(x) - k :]) in subruns(y))
    assert suffix_score(a, b) == pytest.approx(longest / max(len(a), len(b), 1))


def test_long_runs():
    rng = random.Random(1)
    for size in (50, 64, 200):
        a, b = ([rng.randrange(9) for _ in range(size)] for _ in range(2))
        assert edit_distance(a, b) == table(a, b) and common_subsequence(a, b) == table(a, b, True)


def test_numbers_of_the_card():
    parent = list(range(20))
    seven, eight = ([100 + i if i < n else i for i in range(20)] for n in (7, 8))
    assert edit_distance(seven, parent) / 20 == 0.35 and edit_distance(eight, parent) / 20 == 0.4
    four, five = ([100 + i if i < 20 - n else i for i in range(20)] for n in (4, 5))
    assert suffix_score(four, parent) == 0.2 and suffix_score(five, parent) == 0.25
    moved = [*range(100, 115), *range(3, 8)]  # the run need not end the other
    assert suffix_score(moved, parent) == suffix_score(parent, moved) == 0.25
    assert rouge_l([1, 2, 3, 4], [1, 9, 3, 8]) == 0.5
    assert rouge_l([], []) == 1.0 and rouge_l([1], [2]) == 0.0
