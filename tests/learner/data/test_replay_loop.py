"""Replay in the learner's loop: a killed learner replays the same; held-out rows are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from banyan.errors import Refused
from banyan.recipe import Recipe
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_from_wire
from services.learner.data.replay import Replayed, ReplayRequest
from tests.learner.in_memory_learner import RUN, MemoryStore, Rig, grown, recipe

DECOUPLED = {"loss": "decoupled", "loss_settings": {"importance": {"level": "token", "cap": 1.0}}}


def hopeless(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
    """Return the trees of a group; every other group fails altogether."""
    trees = grown(ordinal, policy)
    for scored_leaf in trees[0].scores if ordinal % 2 else ():
        scored_leaf.score.value = 0.0
    return trees


def drawn(store: MemoryStore, request: ReplayRequest) -> tuple[Replayed, ...]:
    """Return the first group of the last batch, whole, and its best leaf for each failed group."""
    if not request.batch:
        return ()
    tree = store.trees_by_id[store.batches[request.batch - 1][0].tree_ids[0]]
    best = next(s.leaf for s in tree.scores if s.score.value == 1.0)
    whole = Replayed(tree.spec.tree_id, tree.spec.group_id)
    return (
        whole,
        *(Replayed(tree.spec.tree_id, group, leaf_from_wire(best)) for group, _ in request.failed),
    )


def asking(**more: Any) -> Recipe:
    data = recipe(5, checkpoint_every=2, **DECOUPLED).model_dump()
    return Recipe.model_validate({**data, "replay": {"fraction": 0.34, "rescue": True, **more}})


@pytest.mark.parametrize("die", [1, 4])
async def test_a_killed_learner_replays_what_its_batches_recorded(
    tmp_path: Path, tiny_folder: Path, die: int
) -> None:
    whole = Rig(tmp_path / "whole", tiny_folder, MemoryStore(hopeless, replay=drawn), asking())
    await whole.run()
    requests = whole.store.asked
    assert [(w.batch, w.groups, [g for g, _ in w.failed]) for w in requests] == [
        (n, 1, [f"{RUN}/train/{2 * n + 1}"]) for n in range(5)
    ]
    assert [len(batch.replayed) for batch, _ in whole.store.batches] == [0, 2, 2, 2, 2]
    shares = [p.metrics["replay_share"] for p in whole.store.live if p.policy.step]
    assert shares[0] == 0.0 and all(share > 0.3 for share in shares[1:])
    plain = Rig(tmp_path / "plain", tiny_folder, MemoryStore(hopeless), asking())
    await plain.run()
    store = MemoryStore(hopeless, replay=drawn, die_after_commit=die)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path / "killed", tiny_folder, store, asking()).run()
    store.die_after_commit, before = -1, len(store.asked)
    restarted = Rig(tmp_path / "killed", tiny_folder, store, asking())
    await restarted.run()
    # Committed batches are never drawn again.
    assert [request.batch for request in store.asked[before:]] == list(range(die + 1, 5))
    assert [b.replayed for b, _ in store.batches] == [b.replayed for b, _ in whole.store.batches]
    assert all(torch.equal(whole.final()[n], t) for n, t in restarted.final().items())
    assert not all(torch.equal(plain.final()[n], t) for n, t in restarted.final().items())


async def test_a_held_out_row_is_refused_however_it_came(tmp_path: Path, tiny_folder: Path) -> None:
    def make(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        return grown(ordinal, policy, row=bytes([ordinal]) * 32)

    def strange(store: MemoryStore, request: ReplayRequest) -> tuple[Replayed, ...]:
        (tree,) = grown(77, b"p", row=b"h" * 32)
        store.trees_by_id[tree.spec.tree_id] = tree
        return (Replayed(tree.spec.tree_id, tree.spec.group_id),)

    store = MemoryStore(make, replay=strange)
    with pytest.raises(Refused, match="held-out row"):
        await Rig(tmp_path, tiny_folder, store, asking(), held_out=frozenset({b"h" * 32})).run()
    assert not store.batches
