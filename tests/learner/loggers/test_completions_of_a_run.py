"""Samples of a learner's batches: each step once, also after a kill, and no fault ends a run."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2, tree_pb2
from services.learner.learner import Learner
from services.learner.loggers.logs import Logs
from tests.learner import in_memory_learner as rig_module
from tests.learner.in_memory_learner import RUN, MemoryStore, Rig, grown, recipe


class Source:
    """The store as loggers need it."""

    def __init__(self, tokenizer: bytes = b"") -> None:
        self.data, self.asked = tokenizer, 0

    async def evaluations(self) -> tuple[int, list[runstore_service_pb2.EvalProgress]]:
        return 0, []

    async def tokenizer(self) -> bytes:
        self.asked += 1
        return self.data


def sampling(count: int, steps: int = 4) -> Recipe:
    settings = {"jsonl": {"completions": count}} if count else {}
    logged = {"logging": {"loggers": ["jsonl"], "settings": settings}}
    return Recipe.model_validate(recipe(steps, checkpoint_every=2).model_dump() | logged)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "loggers" / "jsonl" / "completions.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def spoken(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
    """Return a tree with texts, one of whose leaves ends inside its segment."""
    (tree,) = grown(ordinal, policy)
    for number, segment in enumerate(tree.segments):
        segment.text = f"text {number}; "
    tree.leaves[0].end = tree.scores[0].leaf.end = 2
    tree.spec.row_json = '{"answer": "SECRET"}'
    return [tree]


async def ran(folder: Path, model: Path, store: MemoryStore, how: Recipe, source: Source) -> None:
    """Run a learner with loggers, until it ends or dies."""
    logs = Logs(RUN, how, folder, source)
    whole = rig_module.Learner

    def logged(*arguments: Any, **more: Any) -> Learner:
        created = whole(*arguments, **more)
        created.on_step, created.on_batch = logs.step, logs.batch
        return created

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig_module, "Learner", logged)
        try:
            await Rig(folder, model, store, how).run()
        finally:
            await logs.close()


async def test_samples_of_each_step_once_also_after_a_kill(
    tmp_path: Path, tiny_folder: Path
) -> None:
    store, source = MemoryStore(spoken), Source()
    store.die_after_commit = 3
    with pytest.raises(ConnectionAbortedError):
        await ran(tmp_path, tiny_folder, store, sampling(3), source)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    store.die_after_commit = -1
    await ran(tmp_path, tiny_folder, store, sampling(3), source)
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines] == [step for step in (1, 2, 3, 4) for _ in range(3)]
    trees = {tree_id.hex() for tree_id in store.trees_by_id}
    assert {line["tree_id"] for line in lines} <= trees
    assert all(line["prompt"] == "text 0; " and "score/s" in line for line in lines)
    assert all(line["reward"] == line["score/s"] for line in lines)
    assert "SECRET" not in (tmp_path / "loggers" / "jsonl" / "completions.jsonl").read_text()


def words() -> bytes:
    """Return a tokenizer with a word a token."""
    vocabulary = {f"w{n}": n for n in range(40)}
    return Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="w0")).to_str().encode()


@pytest.mark.parametrize("known", [True, False])
async def test_a_leaf_inside_a_segment_is_decoded_by_the_runs_tokenizer(
    tmp_path: Path, tiny_folder: Path, known: bool
) -> None:
    store, source = MemoryStore(spoken), Source(words() if known else b"")
    await ran(tmp_path, tiny_folder, store, sampling(64, steps=1), source)
    lines = lines_of(tmp_path)
    cut = [line["completion"] for line in lines if line["end"] == 2]
    assert source.asked == 1 and len(lines) == 8 and len(cut) == 2
    if known:
        segments = [s for t in store.trees_by_id.values() for s in t.segments]
        tokens = {s.id.hex(): [*memoryview(s.tokens).cast("i")][:2] for s in segments}
        expected = {" ".join(f"w{n}" for n in found) for found in tokens.values()}
        assert set(cut) <= expected
    else:
        assert set(cut) == {"[2 of 3 tokens of: text 1; ]"}


async def test_a_tokenizer_that_is_none_is_said_and_ends_nothing(
    tmp_path: Path, tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        source = Source(b"{}")
        await ran(tmp_path, tiny_folder, MemoryStore(spoken), sampling(2, steps=2), source)
    assert "the run's tokenizer cannot be used" in caplog.text and len(lines_of(tmp_path)) == 4


async def test_samples_that_cannot_be_made_are_said_once_and_end_nothing(
    tmp_path: Path,
    tiny_folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OverflowError("can't convert negative int to unsigned")

    monkeypatch.setattr("services.learner.loggers.logs.completions.drawn", broken)
    store = MemoryStore(spoken)
    with caplog.at_level(logging.WARNING):
        await ran(tmp_path, tiny_folder, store, sampling(2), Source())
    assert len(store.live) == 5 and caplog.text.count("no samples of completions") == 1


async def test_without_a_wish_nothing_is_read_or_written(tmp_path: Path, tiny_folder: Path) -> None:
    source = Source(words())
    await ran(tmp_path, tiny_folder, MemoryStore(spoken), sampling(0), source)
    assert source.asked == 0
    assert not (tmp_path / "loggers" / "jsonl" / "completions.jsonl").exists()
