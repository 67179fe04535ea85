"""The decoding of a batch, once and in the torch thread, and the leaves that are too old for it."""

import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.credit.estimate import ScoredTree
from banyan.recipe import Recipe
from banyan.v1 import tree_pb2
from services.learner.batch_attempt import UNSTUDIED
from services.learner.batch_preparer import BatchPreparer
from services.learner.data import from_store
from services.learner.data.from_store import scored_tree
from services.learner.data.replay import Replayed
from services.learner.ports import StoredBatch
from services.learner.training import drift
from tests.learner.in_memory_learner import MemoryStore, Rig, grown, recipe


async def test_each_tree_is_decoded_once_and_off_the_event_loop(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay needs the trees before the batch is committed, and preparation needs them after."""
    plain = from_store.scored_tree
    times: Counter[bytes] = Counter()
    threads: set[str] = set()

    def counting(message: tree_pb2.Tree) -> ScoredTree:
        times[message.spec.tree_id] += 1
        threads.add(threading.current_thread().name)
        return plain(message)

    monkeypatch.setattr(from_store, "scored_tree", counting)
    monkeypatch.setattr(drift, "due", lambda _step, _last: False)  # a probe reads batch 0 again
    data = recipe(2, loss="decoupled").model_dump() | {"replay": {"fraction": 0.5}}
    store = MemoryStore(grown)
    await Rig(tmp_path, tiny_folder, store, Recipe.model_validate(data)).run()

    assert len(store.asked) == 2, "both batches ask what to train on again"
    assert len(times) == 4 and set(times.values()) == {1}
    assert {name.partition("_")[0] for name in threads} == {"torch"}


def preparer(age: int, store: MemoryStore | None = None) -> BatchPreparer:
    """Return a preparer without a thread, for whose learner all leaves are of this age."""

    async def run(call: Any, *_: Any) -> Any:
        return call()

    at: Any = SimpleNamespace(step=9, history=SimpleNamespace(age_of_path=lambda *_: age))
    thread: Any = SimpleNamespace(run=run)
    return BatchPreparer(recipe(1), frozenset(), store or MemoryStore(grown), thread, at)


@pytest.mark.parametrize(
    ("summary", "committed", "decides"),
    [({}, False, True), ({}, True, False), ({UNSTUDIED: "MemoryError"}, True, True)],
    ids=["new", "committed", "committed for its failure"],
)
def test_age_decides_unless_a_committed_batch_has_recorded_what_was_too_old(
    summary: dict[str, Any], committed: bool, decides: bool
) -> None:
    """Too old is what is older than the recipe allows."""
    batch, tree = StoredBatch(0, (), (), summary), scored_tree(grown(0, b"p")[0])
    most = recipe(1).control.max_staleness
    stale = [preparer(age)._stale(batch, committed) for age in (most, most + 1)]
    assert [of(tree.tree, tree.leaves[0]) for of in stale] == [False, decides]


async def test_a_tree_that_is_replayed_twice_is_fetched_once() -> None:
    """A success may rescue several groups."""
    (own,), (earlier,) = grown(0, b"p"), grown(1, b"p")
    store, group = MemoryStore(grown), own.spec.group_id
    store.trees_by_id = {tree.spec.tree_id: tree for tree in (own, earlier)}
    twice = (Replayed(earlier.spec.tree_id, group), Replayed(earlier.spec.tree_id, "another"))
    batch = StoredBatch(0, (group,), (own.spec.tree_id,), {}, twice)
    fetched = await preparer(0, store).fetch(batch, [own], committed=True)
    assert fetched.messages == [own, earlier]


def test_parts_beyond_those_that_are_measured_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = preparer(0)
    for left_out in (0.0, 3.0, 3.0, 1.0, 5.0):
        made._warn_of_parts({"parts_left_out": left_out} if left_out else {})
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "scorers report 67 parts of scores",
        "scorers report 69 parts of scores",
    ]
