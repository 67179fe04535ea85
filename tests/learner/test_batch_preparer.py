"""The decoding of a batch: once, and in the torch thread."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from banyan.recipe import Recipe
from banyan.v1 import tree_pb2
from services.learner.data import from_store
from services.learner.data.credit import ScoredTree
from services.learner.training import drift
from tests.learner.rig import MemoryStore, Rig, grown, recipe


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
