"""Which trees the report shows, and intervals against hand-computed ones."""

import pytest

from banyan.cli.describe import wilson
from banyan.cli.live import curve
from banyan.cli.report import extremes
from banyan.v1 import treestore_service_pb2 as ts


def summary(name: int, mean: float | None) -> ts.TreeSummary:
    return ts.TreeSummary(tree_id=bytes([name]), **({} if mean is None else {"mean_reward": mean}))


def test_trees_whose_leaves_differ_are_shown_before_those_that_taught_nothing() -> None:
    best, worst = extremes([summary(1, 0.0), summary(2, 0.875), summary(3, 0.125), summary(4, 1.0)])
    assert (best.tree_id, worst.tree_id) == (b"\x02", b"\x03")


def test_equal_trees_and_none_at_all() -> None:
    best, worst = extremes([summary(1, 1.0), summary(2, 1.0), summary(3, None)])
    assert best.tree_id == worst.tree_id == b"\x01"
    assert extremes([summary(1, None)]) is None


def test_wilson_interval() -> None:
    assert wilson(43, 44) == pytest.approx((0.8820, 0.9960), abs=1e-3)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_curve_stays_in_its_range() -> None:
    assert curve([0.0, 0.5, 1.0, 2.0, -1.0]) == "▁▅██▁"
