"""Loggers: what they write is read back; a step is taken once, also after a kill; none of them holds a run up or ends it."""

import asyncio
import json
import logging
import re
import struct
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from banyan import loggers, recipe_file, registry
from banyan.errors import InvalidInput, TemporaryError
from banyan.loggers import LoggedRun, Logger
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2
from services.learner.learner import Learner
from services.learner.loggers.feed import MOST, Feeds
from services.learner.loggers.jsonl import JsonLines
from services.learner.loggers.logs import Logs
from services.learner.loggers.mlflow import MLflow
from services.learner.loggers.tensorboard import TensorBoard
from services.learner.loggers.wandb import WeightsAndBiases
from tests.learner import rig as rig_module
from tests.learner.rig import RUN, MemoryStore, Rig, grown, recipe

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "recipes" / "quickstart.yaml").read_text()
RECIPE = {"name": "tiny", "control": {"groups_per_batch": 2}}


@dataclass
class Recorder:
    """Keeps what it takes, for as long as the test runs."""

    held: int = -1
    taken: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    closed: bool = False
    fails: bool = False
    gate: threading.Event | None = None

    def begin(self, run: LoggedRun) -> int:
        return self.held

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.gate is not None:
            self.gate.wait(30)
        if self.fails:
            raise ConnectionError("no network")
        self.taken.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed = True


def fed(folder: Path, name: str, logger: Logger, steps: range, *labels: str) -> Feeds:
    """A learner's worth of steps, and evaluations at the last of them."""
    feeds = Feeds(RUN, RECIPE, {name: logger}, folder / "loggers")
    for step in steps:
        feeds.step(step, {"reward": step / 10, "loss": float("nan")})
    for label in labels:
        feeds.evaluation(label, steps[-1], {"eval_greedy_reward": 0.5})
    feeds.close()
    assert [feed.lost for feed in feeds.feeds] == [0]
    return feeds


# -- feeding --


def test_steps_are_taken_once_and_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    fed(tmp_path, "mine", first, range(1, 4), "before-greedy")
    fed(tmp_path, "mine", second, range(1, 6), "before-greedy", "after-greedy")
    assert first.closed and [step for step, _ in first.taken] == [1, 2, 3, 3]
    assert first.taken[0][1] == {"reward": 0.1}
    assert [(s, *m) for s, m in second.taken] == [(4, "reward"), (5, "reward"), (5, "eval_greedy_reward")]


def test_a_logger_that_knows_more_than_was_noted_is_believed(tmp_path: Path) -> None:
    recorder = Recorder(held=2)  # killed between the write and the note
    fed(tmp_path, "mine", recorder, range(1, 4))
    assert [step for step, _ in recorder.taken] == [3]


def test_a_logger_that_fails_is_counted_and_complained_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Recorder(fails=True), Recorder()
    feeds = Feeds(RUN, RECIPE, {"bad": bad, "good": good}, tmp_path)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            feeds.step(step, {"reward": 1.0})
        feeds.close()
    assert [feed.lost for feed in feeds.feeds] == [5, 0]
    assert [step for step, _ in good.taken] == [0, 1, 2, 3, 4]
    assert [r.getMessage() for r in caplog.records] == [
        "logger bad fails; the run goes on, and this is said once: ConnectionError: no network"
    ]


def test_a_logger_that_hangs_holds_nothing_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    feeds = Feeds(RUN, RECIPE, {"slow": Recorder(gate=gate)}, tmp_path)
    begun = time.monotonic()
    for step in range(MOST + 50):
        feeds.step(step, {"reward": 1.0})
    with caplog.at_level(logging.WARNING):
        feeds.close(0.2)
    assert time.monotonic() - begun < 5.0
    assert 48 <= feeds.feeds[0].lost <= 50  # one is in its hands
    assert "has not ended in time" in caplog.text
    gate.set()


def test_what_waited_is_written_when_a_full_queue_ends(tmp_path: Path) -> None:
    gate = threading.Event()
    slow = Recorder(gate=gate)
    feeds = Feeds(RUN, RECIPE, {"slow": slow}, tmp_path)
    for step in range(MOST + 50):
        feeds.step(step, {"reward": 1.0})
    threading.Timer(0.2, gate.set).start()
    feeds.close(30.0)
    assert slow.closed and len(slow.taken) + feeds.feeds[0].lost == MOST + 50


# -- each of them --


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "loggers" / "jsonl" / "metrics.jsonl").read_text().splitlines()]


def test_json_lines_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    logger = JsonLines()
    assert logger.begin(LoggedRun(RUN, RECIPE, tmp_path / "loggers" / "jsonl", -1)) == -1
    logger.log(1, {"reward": 0.1})
    assert _lines(tmp_path) == [{"step": 1, "reward": 0.1}]
    logger.log(1, {"eval_greedy_reward": 0.5})
    logger.close()


def test_a_json_line_that_a_kill_tore_is_written_again(tmp_path: Path) -> None:
    fed(tmp_path, "jsonl", JsonLines(), range(1, 4))
    path = tmp_path / "loggers" / "jsonl" / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    (tmp_path / "loggers" / "jsonl.json").unlink()
    fed(tmp_path, "jsonl", JsonLines(), range(1, 5))
    assert [line["step"] for line in _lines(tmp_path)] == [1, 2, 3, 4]


def _next_second() -> None:
    """Files and folders of these two are named by the second."""
    until = int(time.time()) + 1
    while time.time() < until:
        time.sleep(0.05)


def _events(folder: Path) -> Iterator[Any]:
    """Event files as TensorBoard reads them: length, its checksum, data, its checksum."""
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
    noted.write_text(noted.read_text().replace('"step": 3', '"step": 2'))  # killed between the write and the note
    _next_second()
    fed(tmp_path, "tensorboard", TensorBoard(), range(1, 5))
    seen: dict[int, float] = {}
    for event in _events(tmp_path / "loggers" / "tensorboard"):
        if event.session_log.status == 1:  # START: what is there of this step and later ones is void
            seen = {step: value for step, value in seen.items() if step < event.step}
        for value in event.summary.value:
            assert value.tag == "reward" and event.step not in seen
            seen[event.step] = value.simple_value
    assert seen == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})


def test_mlflow_goes_on_with_the_same_run(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    fed(tmp_path, "mlflow", MLflow(), range(1, 4))
    (tmp_path / "loggers" / "mlflow.json").unlink()  # it knows by itself
    fed(tmp_path, "mlflow", MLflow(), range(1, 6), "after-greedy")
    client = MlflowClient(tracking_uri=(tmp_path / "loggers" / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("banyan")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1 and runs[0].data.tags["banyan.run"] == RUN and runs[0].info.status == "FINISHED"
    assert runs[0].data.params["control.groups_per_batch"] == "2"
    history = client.get_metric_history(runs[0].info.run_id, "reward")
    assert [(m.step, m.value) for m in history] == [(n, n / 10) for n in range(1, 6)]
    assert runs[0].data.metrics["eval_greedy_reward"] == 0.5


def _records(data: bytes) -> Iterator[Any]:
    """A W&B file: a LevelDB log of protobuf records in blocks of 32 KiB, behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    at, held = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or a last part
            yield wandb_internal_pb2.Record.FromString(held)
            held = b""


def test_wandb_keeps_runs_offline(tmp_path: Path) -> None:
    fed(tmp_path, "wandb", WeightsAndBiases(mode="offline"), range(1, 4))
    _next_second()
    fed(tmp_path, "wandb", WeightsAndBiases(mode="offline"), range(1, 5))
    until = time.monotonic() + 20.0  # its own process may write a little after it said that it had finished
    while len(_history(tmp_path)) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    assert [(row["step"], row["reward"]) for row in _history(tmp_path)] == [(n, n / 10) for n in range(1, 5)]


def _history(folder: Path) -> list[dict[str, float]]:
    found = sorted((folder / "loggers" / "wandb" / "wandb").glob(f"offline-run-*/run-{RUN}.wandb"))
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for path in found
        for record in _records(path.read_bytes())
        if record.HasField("history")
    ]


# -- in a learner --


async def test_a_killed_learner_and_the_next_one_log_each_step_once(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(grown)
    feeds: list[Feeds] = []

    def told(*arguments: Any, **more: Any) -> Learner:
        made = Learner(*arguments, **more)
        feeds.append(Feeds(RUN, RECIPE, {"jsonl": JsonLines()}, tmp_path / "loggers"))
        made.note = feeds[-1].step
        return made

    monkeypatch.setattr(rig_module, "Learner", told)
    store.die_after_commit = 3
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, recipe(6, checkpoint_every=2)).run()
    feeds[0].close()
    assert [line["step"] for line in _lines(tmp_path)] == [1, 2, 3]
    path = tmp_path / "loggers" / "jsonl" / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))  # killed before it had written step 3
    (tmp_path / "loggers" / "jsonl.json").unlink()
    store.die_after_commit = -1
    await Rig(tmp_path, tiny_folder, store, recipe(6, checkpoint_every=2)).run()
    feeds[1].close()
    lines = _lines(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["staleness_mean"] == 0 and line["zero_variance_share"] == 0 for line in lines)
    assert {line["replay_share"] for line in lines} == {0.0}
    assert lines[3]["reward"] == store.live[-3].metrics["reward"]


class Asked:
    """A store that says how evaluations stand; at first it is away."""

    def __init__(self) -> None:
        self.times = 0

    async def evaluations(self) -> tuple[int, list[runstore_service_pb2.EvalProgress]]:
        self.times += 1
        if self.times == 1:
            raise TemporaryError("the store is away")
        rows = (("before-greedy", 4, 4), ("step-5-sampled", 4, 4), ("after-greedy", 4, 3 if self.times < 4 else 4))
        made = [
            runstore_service_pb2.EvalProgress(label=label, groups=groups, done=done, scored=8, reward_sum=6.0, correct=4)
            for label, groups, done in rows
        ]
        return 9, made


async def test_evaluations_are_logged_once_they_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.learner.loggers.logs.LOOK_S", 0.01)
    wanted = recipe_file.parse(QUICKSTART, ["logging.loggers=[jsonl]"])
    store = Asked()
    logs = Logs(RUN, wanted, tmp_path, store)
    logs.step(1, {"reward": 0.5})
    while store.times < 5:
        await asyncio.sleep(0.01)
    await logs.close()
    lines = sorted(_lines(tmp_path), key=lambda line: (line["step"], len(line)))
    assert lines == [
        {"step": 0, "eval_greedy_reward": 0.75, "eval_greedy_right": 0.5, "eval_greedy_answers": 8.0},
        {"step": 1, "reward": 0.5},
        {"step": 5, "eval_sampled_reward": 0.75, "eval_sampled_right": 0.5, "eval_sampled_answers": 8.0},
        {"step": 9, "eval_greedy_reward": 0.75, "eval_greedy_right": 0.5, "eval_greedy_answers": 8.0},
    ]


class Broken:
    async def evaluations(self) -> Any:
        raise ValueError("a label that is none")


async def test_loggers_that_break_do_not_hide_why_the_learner_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs(RUN, recipe_file.parse(QUICKSTART, ["logging.loggers=[jsonl]"]), tmp_path, Broken())
    logs.step(1, {"reward": 0.5})
    await logs.close()
    assert _lines(tmp_path) == [{"step": 1, "reward": 0.5}] and "a label that is none" in caplog.text


async def test_without_loggers_there_is_no_thread_and_no_question(tmp_path: Path) -> None:
    store = Asked()
    logs = Logs(RUN, recipe_file.parse(QUICKSTART), tmp_path, store)
    logs.step(1, {"reward": 0.5})
    await logs.close()
    assert store.times == 0 and list(tmp_path.iterdir()) == []


# -- in a recipe --


def test_a_logger_that_is_not_installed_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loggers.importlib.util.find_spec
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None if name == "wandb" else whole(name))
    recipe_file.parse(QUICKSTART, ["logging.loggers=[jsonl, tensorboard]"])
    with pytest.raises(InvalidInput, match=r"wandb needs wandb, which is not installed here: pip install wandb==0\.31\.0"):
        recipe_file.parse(QUICKSTART, ["logging.loggers=[jsonl, wandb]"])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            ["logging.loggers=[tensorbord]"],
            "there is no loggers plugin 'tensorbord'; known: jsonl, mlflow, tensorboard, wandb",
        ),
        (["logging.loggers=[jsonl, jsonl]"], "names jsonl twice"),
        (["logging.settings={wandb: {project: x}}"], "settings are for wandb, which loggers does not name"),
        (["logging.loggers=[wandb]", "logging.settings={wandb: {mode: of}}"], "mode 'of' must be one of online"),
        (["logging.loggers=[jsonl]", "logging.settings={jsonl: {path: x}}"], "has no setting 'path'; it has folder"),
        (["logging.loggers=['banyan.draws:Draws']"], "banyan.draws:Draws': Draws.__init__() missing"),
        (["logging.loggers=['banyan.facts:Facts']"], "banyan.facts:Facts is no logger: it has no method `begin`"),
    ],
)
def test_a_recipe_whose_loggers_are_wrong_is_refused(settings: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why)):
        recipe_file.parse(QUICKSTART, settings)


def test_a_logger_of_the_users_own_is_found() -> None:
    name = "services.learner.loggers.jsonl:JsonLines"
    built = loggers.built(recipe_file.parse(QUICKSTART, [f"logging.loggers=['{name}']"]))
    assert isinstance(built[name], JsonLines)


def test_what_is_to_be_installed_is_what_the_extra_installs() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["loggers"]
    found = [registry.find("loggers", name) for name in registry.names("loggers")]
    assert {cls.PACKAGE[1] for cls in found if hasattr(cls, "PACKAGE")} <= set(extra)


def test_loggers_are_no_part_of_a_recipe_without_them() -> None:
    assert Recipe.model_fields["logging"].default == Recipe.model_fields["logging"].default.__class__()
    assert "logging" in Recipe.LATER
