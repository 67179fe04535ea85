"""Names of metrics as `group/name`: each has a group, no two are one, and a log keeps its names."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from banyan.loggers import tags
from services.learner.loggers.mlflow import MLflow
from services.learner.loggers.tensorboard import TensorBoard
from tests.learner.in_memory_learner import MemoryStore, Rig, grown, recipe
from tests.learner.logger_feeds import ROOT, events, fed, next_second


def documented() -> set[str]:
    """Return the metrics of a step that docs/metrics.md names in full."""
    page = (ROOT / "docs" / "metrics.md").read_text().partition("## Tokens of a run")[0]
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    return {
        name
        for cell in cells
        for name in re.findall(r"`([a-z][a-z0-9_.]*[a-z0-9])`", cell)
        if name != "head_"
    }


def test_each_metric_of_the_page_has_a_group_and_a_tag_of_its_own() -> None:
    names = documented() | {"eval_greedy_reward", "head_loss", "score/exact", "part/exact/format"}
    assert len(names) > 60
    made = {name: tags.tag(name) for name in names}
    assert [name for name, tag in made.items() if tag.startswith(f"{tags.OTHERS}/")] == []
    assert len(set(made.values())) == len(names)
    below = [(a, b) for a in made.values() for b in made.values() if a.startswith(f"{b}/")]
    assert below == [], "loggers make folders of names"


def test_tags_are_by_the_table() -> None:
    metrics = {"reward": 1.0, "eval_greedy_right": 0.5, "ratio_1.25_2": 0.1, "of_tomorrow": 3.0}
    assert tags.named(metrics, tags.GROUPED) == {
        "reward/mean": 1.0,
        "eval/greedy_right": 0.5,
        "policy/ratio_1.25_2": 0.1,
        "other/of_tomorrow": 3.0,
    }
    assert tags.named(metrics, tags.PLAIN) == metrics


async def test_all_numbers_of_a_real_step_have_a_group(tmp_path: Path, tiny_folder: Path) -> None:
    store = MemoryStore(grown)
    await Rig(tmp_path, tiny_folder, store, recipe(2)).run()
    measured = store.live[-1].metrics
    assert len(measured) > 40 and "reward_group_std" in measured
    assert [n for n in measured if tags.tag(n).startswith(f"{tags.OTHERS}/")] == []


def _scalars(folder: Path) -> Iterator[tuple[str, int]]:
    for event in events(folder / "loggers" / "tensorboard"):
        yield from ((value.tag, event.step) for value in event.summary.value)


def test_a_log_that_began_with_plain_names_keeps_them(tmp_path: Path) -> None:
    fed(tmp_path, "tensorboard", TensorBoard(tags=tags.PLAIN), range(1, 3))
    noted = tmp_path / "loggers" / "tensorboard.json"
    assert json.loads(noted.read_text())["tags"] == "plain"
    next_second()
    fed(tmp_path, "tensorboard", TensorBoard(), range(3, 5))
    assert set(_scalars(tmp_path)) == {("reward", step) for step in range(1, 5)}


def test_a_note_of_an_older_version_means_plain_names(tmp_path: Path) -> None:
    (tmp_path / "loggers").mkdir()
    (tmp_path / "loggers" / "tensorboard.json").write_text('{"step": 2, "evaluations": []}')
    fed(tmp_path, "tensorboard", TensorBoard(), range(1, 5))
    assert set(_scalars(tmp_path)) == {("reward", 3), ("reward", 4)}


@pytest.mark.parametrize("begun_with", [tags.PLAIN, tags.GROUPED])
def test_mlflow_keeps_names_without_a_note(tmp_path: Path, begun_with: str) -> None:
    from mlflow.tracking import MlflowClient

    other = tags.PLAIN if begun_with == tags.GROUPED else tags.GROUPED
    fed(tmp_path, "mlflow", MLflow(tags=begun_with), range(1, 3))
    (tmp_path / "loggers" / "mlflow.json").unlink()
    fed(tmp_path, "mlflow", MLflow(tags=other), range(1, 5))
    client = MlflowClient(tracking_uri=(tmp_path / "loggers" / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("banyan")
    (run,) = client.search_runs([experiment.experiment_id])
    name = "reward" if begun_with == tags.PLAIN else "reward/mean"
    assert set(run.data.metrics) == {name, "step"}
    assert [m.step for m in client.get_metric_history(run.info.run_id, name)] == [1, 2, 3, 4]
