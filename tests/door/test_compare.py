"""`banyan compare`: two runs side by side."""

import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest

from banyan.cli.runs import compare
from banyan.progress import comparison
from banyan.progress.comparison import Estimate
from banyan.v1 import runstore_service_pb2 as rs
from tests.cli.command import banyan
from tests.cli.refusals import refused
from tests.system.test_made_before import RUN, STORED

OTHER = "other-1c424681"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, with a copy of the run that has another seed and no metrics."""
    folder = tmp_path_factory.mktemp("compared")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    made = folder / "state"
    banyan("runs", "ls", "--state", made)
    with sqlite3.connect(made / "store.sqlite") as database:
        database.row_factory = sqlite3.Row
        row = dict(database.execute("SELECT * FROM runs").fetchone())
        recipe = json.loads(row["recipe_json"]) | {"seed": 7}
        recipe["generate"]["settings"] = {"width": 8}
        row |= {"run_id": OTHER, "request_id": "other", "recipe_json": json.dumps(recipe)}
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        database.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", list(row.values()))
    return made


def test_recipes_and_numbers_stand_side_by_side(state: Path) -> None:
    said = banyan("compare", RUN, "other", "--state", state)
    assert said.returncode == 0, said.stderr
    assert "A  before-1c424680" in said.stdout and f"B  {OTHER}" in said.stdout
    lines = {line.split()[0]: line.split() for line in said.stdout.splitlines() if line.split()}
    assert lines["seed"] == ["seed", "0", "7"]
    assert lines["generate.settings.width"] == ["generate.settings.width", "4", "8"]
    assert lines["reward"][1] == "0.463" and lines["reward"][-1] == "-"
    assert "before-greedy accuracy" in said.stdout and "entropy" in said.stdout


def test_programs_get_all_of_it(state: Path) -> None:
    found = json.loads(banyan("compare", RUN, OTHER, "--json", "--state", state).stdout)
    assert found["first"]["run_id"] == RUN and found["same_rows"] is True
    keys = {row["key"] for row in found["recipe"]}
    assert keys == {"seed", "generate.settings.width"}
    first = found["evaluations"][0]
    assert first["first"]["value"] == 1.0 and first["second"] is None


def test_all_metrics_are_shown_if_they_shall_be(state: Path) -> None:
    few, every = (
        banyan("compare", RUN, "other", *more, "--state", state) for more in ((), ["--all"])
    )
    metrics = {row["name"] for row in _compared(state)["metrics"]}
    left_out = metrics - set(compare._SHOWN)
    assert left_out and not any(f"\n{name} " in few.stdout for name in left_out)
    shown = {line.split()[0] for line in every.stdout.splitlines() if line.split()}
    assert metrics <= shown


def test_other_held_out_rows_are_said(state: Path) -> None:
    assert "held out different rows" not in banyan("compare", RUN, OTHER, "--state", state).stdout
    with sqlite3.connect(state / "store.sqlite") as database:
        database.execute("UPDATE runs SET split_digest = x'00' WHERE run_id = ?", [OTHER])
    said = banyan("compare", RUN, OTHER, "--state", state)
    assert "the two runs held out different rows" in said.stdout
    assert _compared(state)["same_rows"] is False


def _compared(state: Path) -> Any:
    return json.loads(banyan("compare", RUN, OTHER, "--json", "--state", state).stdout)


def test_a_difference_has_its_sign_and_is_that_of_the_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = [{"step": n, "reward": r} for n, r in enumerate((0.2, 0.4))]
    second = [{"step": n, "reward": r} for n, r in enumerate((0.7, 0.9))]
    (row,) = comparison.metrics(first, second)
    assert row.difference is not None and row.difference.interval is not None
    low, high = row.difference.interval
    assert row.difference.value == pytest.approx(0.5)
    # Each mean has a standard error of 0.1; t(0.975) is 4.3027 for Welch's two degrees of freedom.
    assert high - low == pytest.approx(2 * 4.3027 * 0.02**0.5, rel=1e-4), "both spreads count"
    compare._table("metrics", [row])
    assert "+0.5 (-0.108 to +1.11)" in capsys.readouterr().out


def test_a_run_is_not_compared_with_itself(state: Path) -> None:
    refused(banyan("compare", RUN, "before", "--state", state), "are one run")


def test_the_interval_of_a_difference_is_newcombes() -> None:
    """Newcombe (1998), table II (a): 56 of 70 against 48 of 80."""
    both = (
        rs.ReadProgressResponse(evals=[progress(48, 80)]),
        rs.ReadProgressResponse(evals=[progress(56, 70)]),
    )
    (row,) = comparison.evaluations(*both)
    assert row.difference is not None and row.difference.interval is not None
    assert row.difference.value == pytest.approx(0.2)
    assert row.difference.interval == pytest.approx((0.0524, 0.3339), abs=5e-5)


def progress(correct: int, n: int) -> rs.EvalProgress:
    return rs.EvalProgress(label="after-greedy", scored=n, correct=correct, reward_sum=correct)


def test_graded_rewards_are_means_without_an_interval() -> None:
    message = rs.EvalProgress(label="after-greedy", scored=4, correct=1, reward_sum=2.5)
    both = (rs.ReadProgressResponse(evals=[message]), rs.ReadProgressResponse())
    (row,) = comparison.evaluations(*both)
    assert row.name == "after-greedy mean reward" and row.difference is None
    assert row.first == Estimate(0.625, None, 4) and row.second is None


def test_metrics_are_means_of_the_last_steps() -> None:
    first = [{"step": step, "reward": float(step), "lost": None} for step in range(20)]
    second = [{"step": 0, "reward": 3.0, "entropy": 1.0}]
    entropy, reward = comparison.metrics(first, second, last=4)
    assert entropy.first is None and entropy.difference is None
    assert reward.first is not None and reward.first.value == 17.5 and reward.first.n == 4
    half = 3.182446 * (5 / 3) ** 0.5 / 2  # Student's t for 3 degrees of freedom
    assert reward.first.interval == pytest.approx((17.5 - half, 17.5 + half))
    assert reward.second == Estimate(3.0, None, 1)
    assert reward.difference == Estimate(-14.5, None, 1)


def test_the_difference_of_metrics_has_welchs_interval() -> None:
    """Variances 5/3 of four steps and 1/3 of three: s² = 5/12 + 1/9, 4.37 degrees of freedom."""
    first = [{"step": n, "reward": value} for n, value in enumerate((1.0, 2.0, 3.0, 4.0))]
    second = [{"step": n, "reward": value} for n, value in enumerate((4.0, 4.0, 5.0))]
    (reward,) = comparison.metrics(first, second)
    assert reward.difference is not None and reward.difference.interval is not None
    half = 2.776445 * (5 / 12 + 1 / 9) ** 0.5  # 4 degrees of freedom
    middle = 13 / 3 - 2.5
    assert reward.difference.value == pytest.approx(middle)
    assert reward.difference.interval == pytest.approx((middle - half, middle + half))


def test_graded_rewards_that_add_up_to_whole_numbers_keep_their_unit() -> None:
    """One run's rewards −0.5 and 0.5 have mean 0, as 0 of 4 right answers would."""
    level = rs.EvalProgress(label="before-sampled", scored=4, correct=0, reward_sum=0.0)
    other = rs.EvalProgress(label="after-sampled", scored=4, correct=0, reward_sum=-1.0)
    run = rs.ReadProgressResponse(evals=[level, other])
    rows = comparison.evaluations(run, rs.ReadProgressResponse(evals=[level]))
    assert [row.name for row in rows] == ["before-sampled mean reward", "after-sampled mean reward"]
    assert rows[0].first == Estimate(0.0, None, 4) and rows[0].difference is None


def test_evaluations_stand_in_the_order_of_their_steps() -> None:
    """The store sorts labels as texts: after, before, step-10, step-5."""
    labels = ["after-greedy", "before-greedy", "before-sampled", "step-10-greedy", "step-5-greedy"]
    messages = [rs.EvalProgress(label=label, scored=1) for label in labels]
    rows = comparison.evaluations(
        rs.ReadProgressResponse(evals=messages[1:]), rs.ReadProgressResponse(evals=messages[:2])
    )
    assert [row.name.removesuffix(" accuracy") for row in rows] == [
        "before-greedy",
        "before-sampled",
        "step-5-greedy",
        "step-10-greedy",
        "after-greedy",
    ]


def test_recipes_differ_by_their_innermost_keys() -> None:
    first = {"a": {"b": 1, "c": [1, 2]}, "filter": [{"name": "x"}], "same": 1}
    second = {"a": {"b": 2, "c": [1, 2]}, "filter": [{"name": "y"}, {"name": "z"}], "same": 1}
    found = comparison.differences(json.dumps(first), json.dumps(second))
    assert found == [
        ("a.b", "1", "2"),
        ("filter.0.name", '"x"', '"y"'),
        ("filter.1.name", "-", '"z"'),
    ]
