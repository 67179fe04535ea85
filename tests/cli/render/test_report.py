"""Trees in the report, and intervals against hand-computed ones."""

import pytest
from rich.console import Console

from banyan.cli.render.curve import curve
from banyan.cli.render.run_report import (
    evaluation_table,
    given_up,
    reward_curve,
    unscored,
)
from banyan.cli.render.taught import SEARCHED, taught
from banyan.doctor.history import not_deterministic
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.plain_data import wilson


def summary(
    name: int, mean: float | None, state: tree_pb2.TreeState = tree_pb2.TREE_STATE_CONSUMED
) -> ts.TreeSummary:
    known = {} if mean is None else {"mean_reward": mean}
    return ts.TreeSummary(tree_id=bytes([name]), leaves=4, state=state, **known)


def shown(*summaries: ts.TreeSummary, credits: dict[int, int]) -> tuple[str, int] | None:
    asked: list[int] = []

    def count(of: ts.TreeSummary) -> int:
        asked.append(of.tree_id[0])
        return credits.get(of.tree_id[0], 1)

    result = taught(summaries, count)
    assert len(asked) <= SEARCHED, "each is read whole"
    return result and (result[0], result[1].tree_id[0])


def test_the_tree_with_the_most_different_credits_is_shown_the_newest_of_equals() -> None:
    trees = summary(1, 0.0), summary(2, 0.875), summary(3, 0.125), summary(4, 1.0), summary(5, 0.5)
    learned = "a tree that it learned from"
    assert shown(*trees, credits={2: 3, 3: 5, 5: 4}) == (learned, 3)
    assert shown(*trees, credits={2: 2, 3: 5, 5: 5}) == (learned, 3)
    assert shown(*trees, credits={1: 9, 4: 9, 2: 2}) == (learned, 2), "extremes teach nothing"
    many = [summary(n, 0.5 + 0.001 * n) for n in range(1, 41)]
    assert shown(*many, credits={40: 9, 8: 2}) == (learned, 8), "39 are newer"


def test_where_all_credit_is_equal_or_unknown_the_newest_tree_is_shown() -> None:
    assert shown(summary(3, None), summary(1, 1.0), summary(2, 1.0), credits={}) == (
        "the newest tree",
        1,
    )
    assert shown(summary(1, 0.5), summary(2, 0.0), summary(4, 1.0), credits={}) == (
        "the newest tree",
        1,
    )
    assert shown(summary(1, 0.5), credits={1: 3}) == ("a tree that it learned from", 1)
    assert shown(summary(1, None), credits={}) is None


def test_a_tree_that_no_batch_took_taught_nothing() -> None:
    dropped, closed = tree_pb2.TREE_STATE_DROPPED, tree_pb2.TREE_STATE_CLOSED
    spare, waits = summary(9, 0.6, dropped), summary(8, 0.4, closed)
    taken = summary(1, 0.2), summary(2, 0.5), summary(3, 0.9)
    credits = {9: 9, 8: 9, 2: 3}
    assert shown(spare, waits, *taken, credits=credits) == ("a tree that it learned from", 2)
    assert shown(spare, waits, summary(1, 0.5), credits=credits) == ("the newest tree", 1)
    assert shown(spare, waits, credits=credits) == ("the newest tree", 9)


def test_the_line_of_rewards_says_where_it_began_and_where_it_ended() -> None:
    rewards = [0.0] * 5 + [0.5] * 90 + [1.0] * 5
    line = reward_curve(rewards)
    assert line.endswith("  0.000 in the first 5 of 100 steps, 1.000 in the last")
    assert line[0] == "▁" and line[47] == "█" and line[24] == "▅" and line[48] == " "
    assert reward_curve([0.25, 0.75]) == "▃▇  0.250 in the first 1 of 2 steps, 0.750 in the last"
    assert reward_curve([0.0, 0.5, 1.0]).endswith(
        "  0.000 in the first 1 of 3 steps, 1.000 in the last"
    )
    assert reward_curve([0.5]) == reward_curve([]) == ""


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


def test_votes_stand_beside_a_leaf_of_the_same_rows() -> None:
    alike = rs.Votes(rows=4, value_sum=3, correct=3, leaf_value_sum=2.25, leaf_correct_sum=2.25)
    by_head = rs.Votes(rows=4, value_sum=4, correct=4, leaf_value_sum=2.25, leaf_correct_sum=2.25)
    measured = {"groups": 4, "done": 4, "scored": 12, "reward_sum": 7.0, "correct": 7}
    before = rs.EvalProgress(label="before-voted", votes=alike, **measured)
    after = rs.EvalProgress(label="after-voted", votes=alike, head_votes=by_head, **measured)
    shown = printed(rs.ReadProgressResponse(evals=[before, after]))
    rows = [[*map(str.strip, line.split("  "))] for line in shown.splitlines()[2:]]
    assert [[cell for cell in row if cell] for row in rows] == [
        ["voted, a leaf", "4", "56.2 %", "-", "56.2 %", "-"],
        ["voted, majority", "4", "75.0 %", "30.1 – 95.4", "75.0 %", "30.1 – 95.4"],
        ["voted, by head", "4", "-", "-", "100.0 %", "51.0 – 100.0"],
    ]
    unvoted = rs.EvalProgress(label="before-voted", **measured)
    assert "voted, a leaf" in printed(rs.ReadProgressResponse(evals=[unvoted]))


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
