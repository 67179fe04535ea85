"""Statistics of the experiment `trees`: hand-computed ratios, censored runs, Holm's rule."""

import math

import pytest

from bench.trees import figures
from bench.trees.figures import Spent


def _spent(*values: float) -> list[Spent]:
    return [Spent(value) for value in values]


def test_the_ratio_of_geometric_means_with_welchs_interval() -> None:
    """Logs 1, 2, 3 and 0, 0, 3: means 2 and 1, variances 1 and 3, error √(1/3 + 3/3) = 1.1547,
    freedom (4/3)² / ((1/3)² / 2 + 1² / 2) = 3.2, so 3, whose 97.5 % quantile is 3.1824.
    """
    first, second = _spent(*map(math.exp, (1, 2, 3))), _spent(*map(math.exp, (0, 0, 3)))
    found = figures.ratio(first, second)
    assert found.exact
    assert math.log(found.estimate) == pytest.approx(1.0)
    assert math.log(found.low) == pytest.approx(1 - 3.1824463 * 1.1547005, abs=1e-5)
    assert math.log(found.high) == pytest.approx(1 + 3.1824463 * 1.1547005, abs=1e-5)
    assert found.p == pytest.approx(0.4502, abs=1e-4)  # of |t| ≥ 0.8660 at 3


def test_equal_runs_have_a_ratio_of_one() -> None:
    found = figures.ratio(_spent(5, 5), _spent(5, 5))
    assert (found.estimate, found.low, found.high, found.p) == (1.0, 1.0, 1.0, 1.0)


def test_a_run_that_did_not_get_there_counts_as_its_cap_and_the_ratio_is_a_bound() -> None:
    first = [*_spent(100, 110, 120), Spent(200, censored=True)]
    found = figures.ratio(first, _spent(50, 55, 60, 52))
    logs = [math.log(x) for x in (100, 110, 120, 200)], [math.log(x) for x in (50, 55, 60, 52)]
    assert not found.exact
    assert found.estimate == pytest.approx(math.exp((sum(logs[0]) - sum(logs[1])) / 4))
    assert 1.5 < found.low < found.estimate < found.high < 4
    assert found.p == pytest.approx(2 / 70)  # of 8 over 4 ways, this one and its mirror
    assert figures.ratio(first, _spent(50, 55, 60, 52)) == found  # drawn the same each time


def test_percentiles_leave_out_as_much_on_both_sides() -> None:
    assert figures.percentiles(list(range(100)), 0.1) == (5, 94)


def test_a_difference_of_means_has_an_interval() -> None:
    estimate, low, high = figures.difference((0.9, 0.8, 0.7), (0.5, 0.4, 0.6))
    half = 2.7764451 * math.sqrt(0.01 / 3 + 0.01 / 3)  # freedom 4
    assert (estimate, low, high) == pytest.approx((0.3, 0.3 - half, 0.3 + half))


def test_holm_adjusts_for_the_number_of_comparisons() -> None:
    """0.01 · 3, then max(0.03, 0.02 · 2), then max(0.04, 0.04 · 1)."""
    assert figures.holm((0.02, 0.01, 0.04)) == pytest.approx([0.04, 0.03, 0.04])
    assert figures.holm((0.9, 0.8)) == [1.0, 1.0]


def test_a_bound_has_the_probability_of_all_ways_to_deal_its_runs() -> None:
    """Of five runs each three of one arm get there: as Fisher's exact test, 2 · C(7, 2) of 252."""
    caps = [Spent(1000, censored=True)] * 5
    some = [*_spent(500, 600, 700), *caps[:2]]
    assert figures.ratio(caps, some).p == pytest.approx(42 / 252)
    assert figures.ratio(some, caps).p == pytest.approx(42 / 252)
    assert figures.ratio([Spent(100), Spent(200, censored=True)], _spent(100, 200)).p == 1.0
