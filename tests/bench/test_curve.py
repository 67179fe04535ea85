"""Courses of runs: accuracy at sampled tokens, and seconds of steps, read from a store."""

import sqlite3
from pathlib import Path

import pytest

from banyan.v1 import events_pb2
from bench.harness import curve
from bench.harness.curve import at_tokens, first_at

TOKENS = [0, 500, 1000, 1500, 2000]


def test_accuracy_lies_on_the_line_between_measured_policies() -> None:
    accuracy = {0: 0.1, 2: 0.3, 4: 0.7}
    assert at_tokens(TOKENS, accuracy, 1000) == pytest.approx(0.3)
    assert at_tokens(TOKENS, accuracy, 1250) == pytest.approx(0.4)
    assert at_tokens(TOKENS, accuracy, 500) == pytest.approx(0.2)
    assert at_tokens(TOKENS, accuracy, 2001) is None


def test_a_policy_that_sampled_nothing_new_counts_as_it_is() -> None:
    assert at_tokens([0, 0, 10], {0: 0.2, 1: 0.4, 2: 0.6}, 0) == 0.4


def test_the_first_good_policy_is_found_by_number() -> None:
    assert first_at({10: 0.95, 2: 0.2, 8: 0.9}, 0.9) == 8
    assert first_at({2: 0.2}, 0.9) is None


def store(path: Path) -> Path:
    """Make two steps of a run whose policy 1 was measured for two seconds before the second
    step."""
    published = [
        events_pb2.PolicyPublished(metrics={"reward": r}).SerializeToString()
        for r in (0.0, 0.25, 0.5)
    ]
    with sqlite3.connect(path) as db:
        db.execute("create table policies (run_id, step, stored_ms, published, abandoned)")
        db.execute("create table trees (run_id, tree_id, label, purpose, closed_ms)")
        db.execute("create table segments (tree_id, kind, length, stored_ms)")
        db.execute(
            "create table tallies (run_id, label, reward_sum, scored, groups, closed, dropped)"
        )
        for step, at in enumerate((1_000, 6_000, 12_000)):
            db.execute("insert into policies values ('r', ?, ?, ?, 0)", (step, at, published[step]))
        trees = [
            ("e0", "before-greedy", 2, 2_000),
            ("e1", "step-1-greedy", 2, 8_000),
            ("e2", "after-greedy", 2, 0),
        ]
        for tree, label, purpose, closed in [*trees, ("a", "", 1, 5_000), ("b", "", 1, 11_000)]:
            db.execute("insert into trees values ('r', ?, ?, ?, ?)", (tree, label, purpose, closed))
        for tree, kind, length, at in (
            ("a", 1, 40, 3_000),
            ("a", 2, 8, 4_000),
            ("b", 2, 6, 9_000),
            ("e1", 2, 99, 7_000),
        ):
            db.execute("insert into segments values (?, ?, ?, ?)", (tree, kind, length, at))
        for label, right in (("before-greedy", 0.0), ("step-1-greedy", 3.0), ("after-greedy", 4.0)):
            db.execute("insert into tallies values ('r', ?, ?, 4, 4, 4, 0)", (label, right))
    return path


def test_a_curve_takes_evaluations_off_the_steps(tmp_path: Path) -> None:
    result = curve.read(store(tmp_path / "store.sqlite"), "r")
    assert result.seconds == [4.0, 4.0]  # 6 − 2, after the first evaluation; 12 − 8
    assert result.tokens == [0, 8, 14]
    assert result.accuracy == {0: 0.0, 1: 0.75}  # a tree of the last evaluation is not closed yet
    assert [m["reward"] for m in result.metrics] == [0.25, 0.5]
    assert result.measured_tokens == 8
