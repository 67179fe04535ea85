"""Loggers: a step is logged once, also after a kill, and no logger delays or ends a run."""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import TemporaryError
from banyan.loggers import LoggedRun
from banyan.recipe_loader import load
from banyan.v1 import runstore_service_pb2
from services.learner.learner import Learner
from services.learner.loggers.feed import MOST, Feeds
from services.learner.loggers.jsonl import JsonLines
from services.learner.loggers.logs import Logs, measured
from tests.learner import in_memory_learner as rig_module
from tests.learner.in_memory_learner import RUN, MemoryStore, Rig, grown, recipe
from tests.learner.logger_feeds import QUICKSTART, RECIPE, fed, lines_of


@dataclass
class Recorder:
    """A logger that keeps its records in memory."""

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


def test_steps_are_taken_once_and_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    fed(tmp_path, "mine", first, range(1, 4), "before-greedy")
    fed(tmp_path, "mine", second, range(1, 6), "before-greedy", "after-greedy")
    assert first.closed and [step for step, _ in first.taken] == [1, 2, 3, 3]
    assert first.taken[0][1] == {"reward": 0.1}
    assert [(s, *m) for s, m in second.taken] == [
        (4, "reward"),
        (5, "reward"),
        (5, "eval_greedy_reward"),
    ]


def test_a_logger_that_knows_more_than_was_noted_is_believed(tmp_path: Path) -> None:
    recorder = Recorder(held=2)  # killed between the write and the note
    fed(tmp_path, "mine", recorder, range(1, 4))
    assert [step for step, _ in recorder.taken] == [3]


def test_a_logger_that_fails_is_counted_and_complained_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_logger_that_hangs_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_a_killed_learner_and_the_next_one_log_each_step_once(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(grown)
    feeds: list[Feeds] = []

    def logged_learner(*arguments: Any, **more: Any) -> Learner:
        created = Learner(*arguments, **more)
        feeds.append(Feeds(RUN, RECIPE, {"jsonl": JsonLines()}, tmp_path / "loggers"))
        created.on_step = feeds[-1].step
        return created

    monkeypatch.setattr(rig_module, "Learner", logged_learner)
    store.die_after_commit = 3
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, recipe(6, checkpoint_every=2)).run()
    feeds[0].close()
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3]
    path = tmp_path / "loggers" / "jsonl" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))  # killed before it had written step 3
    (tmp_path / "loggers" / "jsonl.json").unlink()
    store.die_after_commit = -1
    await Rig(tmp_path, tiny_folder, store, recipe(6, checkpoint_every=2)).run()
    feeds[1].close()
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["staleness_mean"] == 0 and line["zero_variance_share"] == 0 for line in lines)
    assert {line["replay_share"] for line in lines} == {0.0}
    assert lines[3]["reward"] == store.live[-3].metrics["reward"]


class Asked:
    """A store with the progress of evaluations; at first it is away."""

    def __init__(self) -> None:
        self.times = 0

    async def evaluations(self) -> tuple[int, list[runstore_service_pb2.EvalProgress]]:
        self.times += 1
        if self.times == 1:
            raise TemporaryError("the store is away")
        rows = (
            ("before-greedy", 4, 4),
            ("step-5-sampled", 4, 4),
            ("after-greedy", 4, 3 if self.times < 4 else 4),
        )
        created = [
            runstore_service_pb2.EvalProgress(
                label=label, groups=groups, done=done, scored=8, reward_sum=6.0, correct=4
            )
            for label, groups, done in rows
        ]
        return 9, created


def test_votes_are_metrics_beside_a_leaf_of_the_same_rows() -> None:
    Votes = runstore_service_pb2.Votes
    progress = runstore_service_pb2.EvalProgress(
        label="after-voted",
        scored=16,
        reward_sum=4.0,
        correct=4,
        votes=Votes(rows=4, value_sum=2, correct=2, leaf_value_sum=1.0, leaf_correct_sum=1.0),
        head_votes=Votes(rows=2, value_sum=2, correct=1),
    )
    assert measured(progress) == {
        "eval_voted_reward": 0.25,
        "eval_voted_right": 0.25,
        "eval_voted_answers": 16.0,
        "eval_voted_majority_reward": 0.5,
        "eval_voted_majority_right": 0.5,
        "eval_voted_majority_rows": 4.0,
        "eval_voted_leaf_reward": 0.25,
        "eval_voted_leaf_right": 0.25,
        "eval_voted_head_reward": 1.0,
        "eval_voted_head_right": 0.5,
        "eval_voted_head_rows": 2.0,
    }


async def test_evaluations_are_logged_once_they_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.loggers.logs.POLL_S", 0.01)
    wanted = load.parse(QUICKSTART, ["logging.loggers=[jsonl]"])
    store = Asked()
    logs = Logs(RUN, wanted, tmp_path, store)
    logs.step(1, {"reward": 0.5})
    while store.times < 5:
        await asyncio.sleep(0.01)
    await logs.close()
    lines = sorted(lines_of(tmp_path), key=lambda line: (line["step"], len(line)))
    assert lines == [
        {
            "step": 0,
            "eval_greedy_reward": 0.75,
            "eval_greedy_right": 0.5,
            "eval_greedy_answers": 8.0,
        },
        {"step": 1, "reward": 0.5},
        {
            "step": 5,
            "eval_sampled_reward": 0.75,
            "eval_sampled_right": 0.5,
            "eval_sampled_answers": 8.0,
        },
        {
            "step": 9,
            "eval_greedy_reward": 0.75,
            "eval_greedy_right": 0.5,
            "eval_greedy_answers": 8.0,
        },
    ]


class Broken:
    async def evaluations(self) -> Any:
        raise ValueError("a label that is none")


async def test_loggers_that_break_do_not_hide_why_the_learner_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = Logs(RUN, load.parse(QUICKSTART, ["logging.loggers=[jsonl]"]), tmp_path, Broken())
    logs.step(1, {"reward": 0.5})
    await logs.close()
    assert (
        lines_of(tmp_path) == [{"step": 1, "reward": 0.5}] and "a label that is none" in caplog.text
    )


async def test_without_loggers_there_is_no_thread_and_no_question(tmp_path: Path) -> None:
    store = Asked()
    logs = Logs(RUN, load.parse(QUICKSTART), tmp_path, store)
    logs.step(1, {"reward": 0.5})
    await logs.close()
    assert store.times == 0 and list(tmp_path.iterdir()) == []
