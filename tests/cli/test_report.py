"""Trees in the report, and intervals against hand-computed ones."""

import pytest
from rich.console import Console

from banyan.cli.render.live import curve
from banyan.cli.render.plain_data import wilson
from banyan.cli.render.run_report import (
    evaluation_table,
    extremes,
    given_up,
    not_deterministic,
    unscored,
)
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts


def summary(name: int, mean: float | None, leaves: int = 4) -> ts.TreeSummary:
    return ts.TreeSummary(
        tree_id=bytes([name]), leaves=leaves, **({} if mean is None else {"mean_reward": mean})
    )


def shown(*summaries: ts.TreeSummary, varied: tuple[int, ...] = ()) -> list[tuple[str, int]]:
    result = extremes(summaries, lambda s: s.tree_id[0] in varied)
    return [(title.split(" (")[0], s.tree_id[0]) for title, s in result]


def test_the_best_tree_is_the_best_and_the_worst_is_the_worst() -> None:
    trees = summary(1, 0.0), summary(2, 0.875), summary(3, 0.125), summary(4, 1.0)
    assert shown(*trees, varied=(2, 3)) == [("best tree", 4), ("worst tree", 1)]


def test_among_equals_one_whose_leaves_differ_is_taken_else_the_newest() -> None:
    trees = [summary(n, 0.5 if n < 4 else 0.25) for n in (1, 2, 3, 4, 5)]
    assert shown(*trees, varied=(2, 5)) == [("best tree", 2), ("worst tree", 5)]
    assert shown(*trees) == [("best tree", 1), ("worst tree", 4)]


def test_equal_trees_are_shown_once_and_none_not_at_all() -> None:
    assert shown(summary(1, 1.0), summary(2, 1.0), summary(3, None)) == [("a tree", 1)]
    assert shown(summary(1, 0.5), summary(2, None)) == [("the tree", 1)]
    assert shown(summary(1, None)) == []


def progress(**sums: tuple[float, int]) -> rs.ReadProgressResponse:
    evals = [
        rs.EvalProgress(
            label=label.replace("_", "-"),
            groups=4,
            done=4,
            scored=4,
            reward_sum=total,
            correct=right,
        )
        for label, (total, right) in sums.items()
    ]
    return rs.ReadProgressResponse(evals=evals)


def printed(progress: rs.ReadProgressResponse) -> str:
    table = evaluation_table(progress)
    assert table is not None
    console = Console(width=120)
    with console.capture() as output:
        console.print(table)
    return output.get()


def test_graded_rewards_are_shown_as_means_and_right_answers_as_shares() -> None:
    graded = printed(
        progress(before_greedy=(1.0, 0), after_greedy=(2.5, 0), before_sampled=(0.5, 0))
    )
    assert "mean reward" in graded and "%" not in graded
    assert [line.split() for line in graded.splitlines()[2:]] == [
        ["greedy", "4", "0.250", "0.625"],
        ["sampled", "4", "0.125", "-"],
    ]
    shares = printed(progress(before_greedy=(1.0, 1), after_greedy=(4.0, 4)))
    assert "accuracy" in shares and "25.0 %" in shares and "100.0 %" in shares


def test_where_nothing_was_measured_there_is_no_table() -> None:
    assert evaluation_table(progress()) is None


def test_what_could_not_be_scored_is_said_with_a_reason() -> None:
    samples = rs.SampleCounts(leaves=16, scored=12, unscorable=4)
    evals = [rs.EvalProgress(label="before-greedy", groups=2, done=2, scored=1, unscorable=1)]
    several = rs.ReadProgressResponse(samples=samples, evals=evals)
    assert unscored(several, lambda: "mine: EXCEPTION: odd").startswith(
        "5 of 18 leaves could not be scored"
    )
    assert unscored(several, lambda: "mine: EXCEPTION: odd").endswith(
        "such as: mine: EXCEPTION: odd"
    )
    assert unscored(progress(before_greedy=(1.0, 1)), lambda: "nobody asks") == ""


def test_wilson_interval() -> None:
    assert wilson(43, 44) == pytest.approx((0.8820, 0.9960), abs=1e-3)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_curve_stays_in_its_range() -> None:
    assert curve([0.0, 0.5, 1.0]) == "▁▅█" and curve([]) == ""
    assert curve([0.0, 0.5, 1.0, 2.0, -1.0]) == "▃▅▆█▁"  # rewards of any size keep their shape


def test_what_came_to_nothing_is_said_with_a_reason() -> None:
    several = rs.ReadProgressResponse(groups=rs.GroupCounts(opened=11, dropped=5))
    assert (
        given_up(several, lambda: "NO_ROOM: 40,031 tokens")
        == "5 of 11 groups were given up, such as: NO_ROOM: 40,031 tokens"
    )
    assert (
        given_up(rs.ReadProgressResponse(groups=rs.GroupCounts(opened=11)), lambda: "nobody asks")
        == ""
    )


def test_only_a_deterministic_run_that_met_a_time_is_said_to_be_none() -> None:
    line = not_deterministic(True, {"unrepeatable": 3})
    assert line.startswith("this run is not deterministic: 3 scores are missing")
    assert not_deterministic(True, {"unrepeatable": 0}) == not_deterministic(True, {}) == ""
    assert not_deterministic(False, {"unrepeatable": 3}) == ""
