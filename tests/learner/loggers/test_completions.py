"""Samples of completions by logger: only where asked for, hostile texts stay texts, once a step."""

import json
import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from banyan.errors import InvalidInput
from banyan.loggers import LoggedRun, Logger
from banyan.loggers.completions import Completion
from banyan.recipe_loader import load
from services.learner.loggers.feed import MOST_SAMPLED, Feeds
from services.learner.loggers.jsonl import JsonLines
from services.learner.loggers.mlflow import MLflow
from services.learner.loggers.tensorboard import TensorBoard, markdown
from services.learner.loggers.wandb import WeightsAndBiases
from tests.learner.in_memory_learner import RUN
from tests.learner.logger_feeds import QUICKSTART, RECIPE, events

HOSTILE = (
    "<script>alert(1)</script>\n</pre><img src=x onerror=y>\n\n# head\n```\n| a | b |\n|---|---|\n"
    "[x](javascript:1) &lt; <!-- c --> <?php ?> *b* `c`\n    indented\n~~~\n- \\* ünï 汉\n\n[r]: u"
)
TABLE = {"type": "table"}
ROW = Completion(
    step=1,
    prompt="say <b>",
    completion=HOSTILE,
    reward=0.5,
    advantage=None,
    scores={"score/exact": 0.5, "part/exact/form_": 1.0},
    tree_id="ab" * 32,
    segment="cd" * 32,
    end=3,
    policy_step=7,
)


def rows_of(step: int, count: int) -> list[Completion]:
    return [replace(ROW, step=step, end=number) for number in range(count)]


def fed(folder: Path, name: str, logger: Logger, steps: range) -> None:
    """Feed a logger with steps and with the samples that it wants of them."""
    feeds = Feeds(RUN, RECIPE, {name: logger}, folder / "loggers")
    for step in steps:
        feeds.completions(step, lambda count, step=step: rows_of(step, count))
        feeds.step(step, {"reward": 1.0})
    feeds.close(60.0)
    assert [feed.lost for feed in feeds.feeds] == [0]


@dataclass
class Plain:
    """A logger as they were before samples."""

    steps: list[int] = field(default_factory=list)

    def begin(self, run: LoggedRun) -> int:
        return run.last

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)

    def close(self) -> None:
        pass


@dataclass
class Sampling(Plain):
    """A logger that takes samples."""

    completions: int = 2
    completions_every: int = 1
    taken: list[tuple[int, int]] = field(default_factory=list)
    gate: threading.Event | None = None

    def log_completions(self, step: int, rows: Sequence[Completion]) -> None:
        if self.gate is not None:
            self.gate.wait(30)
        self.taken.append((step, len(rows)))


def test_a_logger_gets_as_many_as_it_asks_for_and_others_none(tmp_path: Path) -> None:
    made: list[int] = []

    def make(count: int) -> list[Completion]:
        made.append(count)
        return rows_of(1, count)

    few, many = Sampling(completions=1), Sampling(completions=5, completions_every=4)
    old, off = Plain(), Sampling(completions=0)
    feeds = Feeds(RUN, RECIPE, {"few": few, "many": many, "old": old, "off": off}, tmp_path)
    for step in range(1, 9):
        feeds.completions(step, make)
        feeds.step(step, {"reward": 1.0})
    feeds.close(60.0)
    assert few.taken == [(step, 1) for step in range(1, 9)]
    assert many.taken == [(1, 5), (4, 5), (8, 5)], "the first step, and every fourth"
    assert off.taken == [] and old.steps == off.steps == [*range(1, 9)]
    assert made == [5, 1, 1, 5, 1, 1, 1, 5]


def test_nothing_is_made_where_no_logger_asks(tmp_path: Path) -> None:
    feeds = Feeds(RUN, RECIPE, {"old": Plain(), "jsonl": JsonLines()}, tmp_path)

    def make(count: int) -> list[Completion]:
        raise AssertionError("nobody asked")

    feeds.completions(1, make)
    feeds.step(1, {"reward": 1.0})
    feeds.close(60.0)
    assert not (tmp_path / "jsonl" / "completions.jsonl").exists()


def test_few_steps_with_samples_wait_for_a_logger_that_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    slow = Sampling(gate=gate)
    feeds = Feeds(RUN, RECIPE, {"slow": slow}, tmp_path)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for step in range(1, 51):
            feeds.completions(step, lambda count, step=step: rows_of(step, count))
            feeds.step(step, {"reward": 1.0})
    assert time.monotonic() - begun < 5.0
    assert 50 - MOST_SAMPLED - 1 <= feeds.feeds[0].lost <= 50 - MOST_SAMPLED
    assert f"it is {MOST_SAMPLED} steps with samples behind" in caplog.text
    gate.set()
    feeds.close(60.0)
    assert slow.steps == [*range(1, 51)], "metrics are not lost with them"
    assert len(slow.taken) + feeds.feeds[0].lost == 50


def test_samples_are_logged_once_by_the_next_learner(tmp_path: Path) -> None:
    fed(tmp_path, "mine", Sampling(), range(1, 4))
    second = Sampling()
    fed(tmp_path, "mine", second, range(2, 6))
    assert second.taken == [(4, 2), (5, 2)]
    noted = tmp_path / "loggers" / "mine.json"
    note = json.loads(noted.read_text()) | {"step": 4}
    noted.write_text(json.dumps(note))  # killed before the metrics of step 5 were noted
    third = Sampling()
    fed(tmp_path, "mine", third, range(4, 7))
    assert third.taken == [(5, 2), (6, 2)]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("{completions: 65}", "completions is 65; it is a number of samples from 0 to 64"),
        ("{completions: true}", "completions is True; it is a number of samples"),
        ("{completions: 4, completions_every: 0}", "completions_every is 0; it is a number of"),
        ("{tags: group}", "tags is 'group'; it is one of grouped, plain"),
    ],
)
def test_settings_that_are_none_are_refused(settings: str, why: str) -> None:
    changes = ["logging.loggers=[tensorboard]", f"logging.settings={{tensorboard: {settings}}}"]
    with pytest.raises(InvalidInput, match=re.escape(f"logging.settings.tensorboard.{why}")):
        load.parse(QUICKSTART, changes)


@dataclass
class Promising(Plain):
    """A logger with the setting, but without the method."""

    completions: int = 0


def test_a_logger_that_cannot_take_samples_is_refused_if_asked_to() -> None:
    name = f"{__name__}:Promising"
    load.parse(QUICKSTART, [f"logging.loggers=['{name}']"])
    changes = [f"logging.loggers=['{name}']", f"logging.settings={{'{name}': {{completions: 1}}}}"]
    with pytest.raises(InvalidInput, match="has no method `log_completions`"):
        load.parse(QUICKSTART, changes)


def test_json_lines_hold_a_line_a_sample_and_no_step_twice(tmp_path: Path) -> None:
    fed(tmp_path, "jsonl", JsonLines(completions=2), range(1, 4))
    path = tmp_path / "loggers" / "jsonl" / "completions.jsonl"
    assert path.read_bytes().isascii(), "a terminal obeys nothing of it"
    path.write_bytes(path.read_bytes()[:-4])  # a torn line: its step has one sample left
    (tmp_path / "loggers" / "jsonl.json").unlink()
    fed(tmp_path, "jsonl", JsonLines(completions=2, completions_every=2), range(1, 5))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["end"]) for line in lines] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (3, 0),
        (4, 0),
        (4, 1),
    ]
    assert lines[0]["completion"] == HOSTILE and lines[0]["advantage"] is None
    assert lines[0]["score/exact"] == 0.5 and lines[0]["policy_step"] == 7


class Shown(HTMLParser):
    """Tags of a page, and the texts of its `pre`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.texts = set[str](), list[str]()
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags |= {tag, *(name for name, _ in attrs)}
        self._inside = tag == "pre"
        if self._inside:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


@pytest.mark.parametrize("text", [HOSTILE, HOSTILE[::-1], "</pre>", "x\x1b[31m\u202e"])
def test_tensorboard_shows_texts_as_texts(text: str) -> None:
    source = markdown(replace(ROW, completion=text, scores={"score/<i>": 1.0}))
    assert re.search("[\x00-\x09\x0b-\x1f\u202e]", source) is None
    page = Shown()
    page.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(source))
    assert page.tags == {"ul", "li", "p", "strong", "pre"}
    obeyed = text.translate({0x1B: "\u241b", 0x202E: "\ufffd"})
    assert page.texts == ["say <b>", obeyed]


def test_tensorboard_keeps_a_text_a_sample(tmp_path: Path) -> None:
    fed(tmp_path, "tensorboard", TensorBoard(completions=2, completions_every=3), range(1, 4))
    texts = {
        (value.tag, event.step): value.tensor.string_val[0].decode()
        for event in events(tmp_path / "loggers" / "tensorboard")
        for value in event.summary.value
        if value.HasField("tensor")
    }
    assert {(tag.removesuffix("/text_summary"), step) for tag, step in texts} == {
        (f"completions/{number}", step) for number in (1, 2) for step in (1, 3)
    }
    expected = markdown(replace(ROW, step=3, end=1))
    assert texts["completions/2/text_summary", 3] == expected and "<script" not in expected


def test_mlflow_keeps_a_table_a_step(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    fed(tmp_path, "mlflow", MLflow(completions=2), range(1, 3))
    fed(tmp_path, "mlflow", MLflow(completions=2), range(1, 4))
    client = MlflowClient(tracking_uri=(tmp_path / "loggers" / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("banyan")
    (run,) = client.search_runs([experiment.experiment_id])
    paths = [f"completions/step-{step:08}.json" for step in (1, 2, 3)]
    assert [file.path for file in client.list_artifacts(run.info.run_id, "completions")] == paths
    folder = client.download_artifacts(run.info.run_id, "completions", str(tmp_path))
    made = json.loads((Path(folder) / "step-00000003.json").read_text())
    (first, _) = (dict(zip(made["columns"], row, strict=True)) for row in made["data"])
    assert first["completion"] == HOSTILE and first["step"] == 3 and first["advantage"] is None
    tables = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert tables == [{"path": path, **TABLE} for path in paths]
    client.log_table(run.info.run_id, {"step": [3]}, "own.json")  # MLflow's own way, by pandas
    theirs = Path(client.download_artifacts(run.info.run_id, "own.json", str(tmp_path)))
    assert json.loads(theirs.read_text()) == {"columns": ["step"], "data": [[3]]}
    tags = client.get_run(run.info.run_id).data.tags
    assert json.loads(tags["mlflow.loggedArtifacts"]) == [*tables, {"path": "own.json", **TABLE}]


def test_wandb_keeps_a_table_a_step(tmp_path: Path) -> None:
    fed(tmp_path, "wandb", WeightsAndBiases(mode="offline", completions=2), range(1, 3))
    folder = tmp_path / "loggers" / "wandb" / "wandb"
    until = time.monotonic() + 20.0  # its own process may write a little after `finish`
    tables: list[dict[str, Any]] = []
    while len(tables) < 2 and time.monotonic() < until:
        files = folder.glob("offline-run-*/files/media/table/completions_*.table.json")
        tables = [json.loads(path.read_text()) for path in files]
        time.sleep(0.1)
    first = [dict(zip(made["columns"], made["data"][0], strict=True)) for made in tables]
    assert sorted(row["step"] for row in first) == [1, 2]
    assert {row["completion"] for row in first} == {HOSTILE}
    assert [len(made["data"]) for made in tables] == [2, 2]
