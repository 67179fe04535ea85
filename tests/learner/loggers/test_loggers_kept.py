"""The records of each logger, and their continuation after a kill."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from banyan.loggers import LoggedRun
from services.learner.loggers.jsonl import JsonLines
from services.learner.loggers.mlflow import MLflow
from services.learner.loggers.tensorboard import TensorBoard
from services.learner.loggers.wandb import WeightsAndBiases
from tests.learner.logged import RECIPE, fed, lines_of
from tests.learner.rig import RUN


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


def _next_second() -> None:
    """Wait for the next second, by which two of the loggers name their files."""
    until = int(time.time()) + 1
    while time.time() < until:
        time.sleep(0.05)


def _events(folder: Path) -> Iterator[Any]:
    """Read event files as TensorBoard does: length, its checksum, data, its checksum."""
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length, crc = struct.unpack_from("<QI", data, at)
            assert crc == masked_crc32c(data[at : at + 8])
            body = data[at + 12 : at + 12 + length]
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(body)
            yield event_pb2.Event.FromString(body)
            at += length + 16


def test_tensorboard_files_hold_the_steps_and_void_what_a_kill_left(tmp_path: Path) -> None:
    fed(tmp_path, "tensorboard", TensorBoard(), range(1, 4))
    noted = tmp_path / "loggers" / "tensorboard.json"
    # Killed between the write and the note.
    noted.write_text(noted.read_text().replace('"step": 3', '"step": 2'))
    _next_second()
    fed(tmp_path, "tensorboard", TensorBoard(), range(1, 5))
    values: dict[int, float] = {}
    for event in _events(tmp_path / "loggers" / "tensorboard"):
        if event.session_log.status == 1:  # START voids this step and later ones
            values = {step: value for step, value in values.items() if step < event.step}
        for value in event.summary.value:
            assert value.tag == "reward" and event.step not in values
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
    history = client.get_metric_history(runs[0].info.run_id, "reward")
    assert [(m.step, m.value) for m in history] == [(n, n / 10) for n in range(1, 6)]
    assert runs[0].data.metrics["eval_greedy_reward"] == 0.5


def _records(data: bytes) -> Iterator[Any]:
    """Read a W&B file: after 7 bytes a LevelDB log of protobuf records in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    at, buffer = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        buffer += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or a last part
            yield wandb_internal_pb2.Record.FromString(buffer)
            buffer = b""


def _history(folder: Path) -> list[dict[str, float]]:
    paths = sorted((folder / "loggers" / "wandb" / "wandb").glob(f"offline-run-*/run-{RUN}.wandb"))
    return [
        {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.history.item
        }
        for path in paths
        for record in _records(path.read_bytes())
        if record.HasField("history")
    ]


def test_wandb_keeps_runs_offline(tmp_path: Path) -> None:
    fed(tmp_path, "wandb", WeightsAndBiases(mode="offline"), range(1, 4))
    _next_second()
    fed(tmp_path, "wandb", WeightsAndBiases(mode="offline"), range(1, 5))
    until = time.monotonic() + 20.0  # its own process may write a little after `finish`
    while len(_history(tmp_path)) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    assert [(row["step"], row["reward"]) for row in _history(tmp_path)] == [
        (n, n / 10) for n in range(1, 5)
    ]
