"""The records of each logger, and their continuation after a kill."""

import time
from pathlib import Path

import pytest

from banyan.loggers import LoggedRun
from services.learner.loggers.jsonl import JsonLines
from services.learner.loggers.mlflow import MLflow
from services.learner.loggers.tensorboard import TensorBoard
from services.learner.loggers.wandb import WeightsAndBiases
from tests.learner.in_memory_learner import RUN
from tests.learner.logger_feeds import RECIPE, events, fed, history, lines_of, next_second


def test_json_lines_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    logger = JsonLines()
    assert logger.begin(LoggedRun(RUN, RECIPE, tmp_path / "loggers" / "jsonl", -1)) == -1
    logger.log(1, {"reward": 0.1})
    assert lines_of(tmp_path) == [{"step": 1, "reward": 0.1}]
    logger.log(1, {"eval_greedy_reward": 0.5})
    logger.close()


def test_a_json_line_that_a_kill_tore_is_written_again(tmp_path: Path) -> None:
    fed(tmp_path, "jsonl", JsonLines(), range(1, 4))
    path = tmp_path / "loggers" / "jsonl" / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    (tmp_path / "loggers" / "jsonl.json").unlink()
    fed(tmp_path, "jsonl", JsonLines(), range(1, 5))
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3, 4]


def test_tensorboard_files_hold_the_steps_and_void_what_a_kill_left(tmp_path: Path) -> None:
    fed(tmp_path, "tensorboard", TensorBoard(), range(1, 4))
    noted = tmp_path / "loggers" / "tensorboard.json"
    # Killed between the write and the note.
    noted.write_text(noted.read_text().replace('"step": 3', '"step": 2'))
    next_second()
    fed(tmp_path, "tensorboard", TensorBoard(), range(1, 5))
    values: dict[int, float] = {}
    for event in events(tmp_path / "loggers" / "tensorboard"):
        if event.session_log.status == 1:  # START voids this step and later ones
            values = {step: value for step, value in values.items() if step < event.step}
        for value in event.summary.value:
            assert value.tag == "reward/mean" and event.step not in values
            values[event.step] = value.simple_value
    assert values == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})


def test_mlflow_goes_on_with_the_same_run(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    fed(tmp_path, "mlflow", MLflow(), range(1, 4))
    (tmp_path / "loggers" / "mlflow.json").unlink()  # it knows by itself
    fed(tmp_path, "mlflow", MLflow(), range(1, 6), "after-greedy")
    client = MlflowClient(tracking_uri=(tmp_path / "loggers" / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("banyan")
    runs = client.search_runs([experiment.experiment_id])
    assert (
        len(runs) == 1
        and runs[0].data.tags["banyan.run"] == RUN
        and runs[0].info.status == "FINISHED"
    )
    assert runs[0].data.params["control.groups_per_batch"] == "2"
    history = client.get_metric_history(runs[0].info.run_id, "reward/mean")
    assert [(m.step, m.value) for m in history] == [(n, n / 10) for n in range(1, 6)]
    assert runs[0].data.metrics["eval/greedy_reward"] == 0.5


def test_wandb_keeps_runs_offline(tmp_path: Path) -> None:
    fed(tmp_path, "wandb", WeightsAndBiases(mode="offline"), range(1, 4))
    next_second()
    fed(tmp_path, "wandb", WeightsAndBiases(mode="offline"), range(1, 5))
    until = time.monotonic() + 20.0  # its own process may write a little after `finish`
    while len(history(tmp_path)) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    assert [(row["step"], row["reward/mean"]) for row in history(tmp_path)] == [
        (n, n / 10) for n in range(1, 5)
    ]
