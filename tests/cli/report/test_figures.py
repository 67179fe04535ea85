"""Figures of a report: each under its name, in order, and of the trees that it says."""

import json
import re
import sqlite3
import tarfile
from typing import Any

import pytest

from banyan.cli.report import report
from banyan.cli.report.chart import Curve, drawn
from banyan.text.redaction import HIDDEN
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data
from tests.cli.command import banyan
from tests.system.test_made_before import STORED


def evaluation(label: str, correct: int, scored: int, reward_sum: float) -> rs.EvalProgress:
    return rs.EvalProgress(
        label=label, groups=scored, done=scored, scored=scored, correct=correct,
        reward_sum=reward_sum,
    )  # fmt: skip


PROGRESS = rs.ReadProgressResponse(
    evals=[
        evaluation("after-greedy", 9, 10, 9.0),
        evaluation("step-5-greedy", 5, 10, 5.0),
        evaluation("before-greedy", 2, 10, 2.0),
        evaluation("before-sampled", 1, 10, 1.0),
    ],
    samples=rs.SampleCounts(
        sampled_tokens=1000, path_tokens=1500, unique_tokens=900, leaves=7, unscorable=2
    ),
)


def test_results_are_in_the_order_of_their_steps_and_graded_ones_are_means() -> None:
    table = report._measured(PROGRESS)
    assert table is not None and [row[0] for row in table.rows] == [
        "before, greedy",
        "before, sampled",
        "step-5, greedy",
        "after, greedy",
    ]
    assert table.rows[0][1:] == ("10", "20.0 %", "5.7 – 51.0")
    assert table.rows[1][1:] == ("10", "10.0 %", "1.8 – 40.4")
    assert report._measured(rs.ReadProgressResponse()) is None


def test_where_one_is_graded_all_are_means() -> None:
    graded = rs.ReadProgressResponse(
        evals=[evaluation("before-greedy", 2, 10, 2.0), evaluation("after-greedy", 1, 10, 4.5)]
    )
    table = report._measured(graded)
    assert table is not None
    assert [row[1:] for row in table.rows] == [("10", "0.200", "–"), ("10", "0.450", "–")]
    (curve,) = report._accuracy(graded, 8)
    assert curve.name == "Held-out reward, mean" and not curve.share and not curve.bounds
    assert list(curve.points) == [(0, 0.2), (8, 0.45)]


def test_the_curve_of_accuracy_has_wilsons_intervals() -> None:
    (curve,) = report._accuracy(PROGRESS, 8)
    assert list(curve.points) == [(0, 0.2), (5, 0.5), (8, 0.9)] and curve.share
    low, high = plain_data.wilson(2, 10)
    assert curve.bounds[0] == (0, low, high) and low < 0.2 < high


def test_shares_are_in_percent_and_rewards_are_not() -> None:
    steps = [{"step": n, "reward": 0.5, "clip_fraction": 0.25, "entropy": None} for n in (1, 2)]
    curves = {curve.name: curve for curve in report._curves(steps)}
    assert "25.0 %" in drawn(curves["Tokens that a bound took"])
    assert "Reward: 0.5 at step 1" in drawn(curves["Reward"])
    assert drawn(curves["Entropy, nats"]) == ""


def test_costs_stand_under_their_names() -> None:
    steps = [
        {"step": 1, "prepare_seconds": 1.0, "train_seconds": 2.0, "publish_seconds": None},
        {"step": 2, "prepare_seconds": 0.5, "train_seconds": 4.0, "publish_seconds": 0.25},
    ]
    costs = report._costs(PROGRESS, steps)
    samples = PROGRESS.samples
    assert costs["tokens that sharing saved"] == f"{plain_data.saved_tokens(samples):,}"
    assert costs["sampled, and on no leaf's path"] == f"{plain_data.unused_tokens(samples):,}"
    assert plain_data.saved_tokens(samples) != plain_data.unused_tokens(samples)
    assert costs["leaves"] == "7, of which 2 could not be scored"
    learner = [costs[f"learner: {part}"] for part in ("prepare", "train", "publish")]
    assert learner == ["1.5 s", "6.0 s", "0.2 s"]


def test_an_interval_is_drawn_around_its_point_and_minus_is_a_minus() -> None:
    svg = drawn(
        Curve(name="x", points=[(0, -1.0), (1, 1.0)], bounds=[(0, -1.5, -0.5), (1, 0.5, 1.5)])
    )
    bars = re.findall(r'class="bar" x1="([\d.]+)" x2="([\d.]+)" y1="([\d.]+)" y2="([\d.]+)"', svg)
    (points,) = re.findall(r'points="([^"]*)"', svg)
    assert len(bars) == 2
    for (x1, x2, bottom, top), point in zip(bars, points.split(), strict=True):
        x, y = map(float, point.split(","))
        assert float(x1) == float(x2) == x
        assert float(bottom) - y == pytest.approx(y - float(top), abs=0.2) and y > float(top)
    assert "x: −1 at step 0, 1 at step 1" in svg


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """The report of a stored run whose recipe holds secrets and that has failed, and its trees."""
    folder = tmp_path_factory.mktemp("reported")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    state = folder / "state"
    (run,) = json.loads(banyan("runs", "ls", "--json", "--state", state).stdout)
    with sqlite3.connect(state / "store.sqlite") as database:
        recipe = json.loads(database.execute("SELECT recipe_json FROM runs").fetchone()[0])
        recipe["generate"]["settings"] = {"api_key": "sk-very-secret"}
        database.execute(
            "UPDATE runs SET recipe_json = ?, cause = 'the <disk> is full'", [json.dumps(recipe)]
        )
    file = folder / "report.html"
    said = banyan("report", run["run_id"], "-o", file, "--state", state)
    assert said.returncode == 0, said.stderr
    listed = banyan("trees", "ls", run["run_id"], "--limit", "100", "--json", "--state", state)
    return file.read_text(encoding="utf-8"), json.loads(listed.stdout)


def test_secrets_of_the_recipe_are_not_in_it(told: tuple[str, Any]) -> None:
    text, _ = told
    assert "sk-very-secret" not in text and f"api_key: {HIDDEN}" in text


def test_the_cause_of_a_failure_is_in_it_as_text(told: tuple[str, Any]) -> None:
    assert ": the &lt;disk&gt; is full" in told[0]


def test_the_best_tree_is_the_best(told: tuple[str, list[dict[str, Any]]]) -> None:
    text, trees = told
    shown = re.findall(r"<p class=soft>(\w{16}), policy step \d+, mean reward ([\d.]+)</p>", text)
    (instructive, _), (best, reward) = shown
    others = [tree for tree in trees if not tree["tree_id"].startswith(instructive)]
    most = max(tree["mean_reward"] for tree in others if tree["mean_reward"] is not None)
    least = min(tree["mean_reward"] for tree in others if tree["mean_reward"] is not None)
    assert reward == f"{most:.3f}" and least < most and best != instructive
