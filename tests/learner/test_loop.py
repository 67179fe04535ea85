"""The loop against a store in memory: batches in order, fencing, held-out rows, weights kept."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from banyan.errors import NotFound, Refused, TemporaryError
from banyan.v1 import tree_pb2
from services.chassis.weights import file
from services.learner.checkpoints import checkpoint
from services.learner.data.selection import Ready
from services.learner.training.trainer_thread import TorchThread
from tests.learner.in_memory_learner import RUN, MemoryStore, Rig, grown, recipe, straight


async def test_every_batch_makes_one_policy_in_order(tmp_path: Path, tiny_folder: Path) -> None:
    rig = await straight(tmp_path, tiny_folder)
    store = rig.store
    assert [b.group_ids for b, _ in store.batches] == [
        (f"{RUN}/train/{2 * i}", f"{RUN}/train/{2 * i + 1}") for i in range(5)
    ]
    assert [p.policy.step for p in store.puts] == [0, 1, 2, 3, 4, 5]
    assert [p.batch_ordinal for p in store.puts[1:]] == [0, 1, 2, 3, 4]
    assert not store.puts[0].HasField("batch_ordinal")
    assert [p.parent_digest for p in store.puts[1:]] == [p.policy.digest for p in store.puts[:-1]]
    metrics = store.puts[3].metrics
    assert metrics["reward"] == 0.25
    assert (metrics["groups"], metrics["groups_skipped"], metrics["applied"]) == (2, 0, 1)
    assert (metrics["unique_tokens"], metrics["path_tokens"]) == (2 * 17, 2 * 32)
    assert metrics["foreign_fraction"] == 0
    assert metrics["grad_norm"] > 0
    summary = store.batches[0][0].summary
    assert [g["advantage_max"] for g in summary["groups"]] == pytest.approx([1.5, 1.5], abs=1e-4)


async def test_the_weights_handed_out_are_the_policys_and_old_ones_go(
    tmp_path: Path, tiny_folder: Path
) -> None:
    rig = await straight(tmp_path, tiny_folder)
    last = rig.store.puts[-1]
    names = sorted(p.name for p in Path(last.path).iterdir())
    assert names == sorted(f"policy-1-{s}.{kind}" for s in (3, 4, 5) for kind in ("bin", "json"))
    manifest = file.open_verified(Path(last.path) / "policy-1-5.json")
    assert (manifest.digest, manifest.bytes) == (last.policy.digest, last.bytes)
    read = file.read_tensors(manifest)
    assert torch.equal(read["model.embed_tokens.weight"], rig.final()["model.embed_tokens.weight"])
    assert torch.equal(read["lm_head.weight"], read["model.embed_tokens.weight"])
    with pytest.raises(NotFound, match="fetch the newest"):
        rig.weights.find(rig.store.puts[1].policy.digest)


async def test_a_group_that_teaches_nothing_is_consumed_and_the_number_moves(
    tmp_path: Path, tiny_folder: Path
) -> None:
    def flat_first(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        return grown(ordinal, policy, spread=ordinal not in (0, 1, 2))

    rig = Rig(tmp_path, tiny_folder, MemoryStore(flat_first), recipe(3))
    await rig.run()
    puts = rig.store.puts
    assert [p.policy.step for p in puts] == [0, 1, 2, 3]
    assert puts[1].policy.digest == puts[0].policy.digest  # both groups flat: no optimizer step
    assert (puts[1].metrics["applied"], puts[1].metrics["groups_skipped"]) == (0, 2)
    assert puts[2].policy.digest != puts[1].policy.digest
    assert puts[2].metrics["groups_skipped"] == 1
    assert "engine_occupancy" not in puts[1].metrics, "nothing was reported before its first step"
    assert puts[2].metrics["engine_occupancy"] == puts[3].metrics["engine_occupancy"] == 0.5
    assert file.open_verified(Path(puts[1].path) / "policy-1-1.json").step == 1
    assert rig.store.batches[0][0].summary["groups"][0]["skip"] == "zero variance"


async def test_a_batch_is_in_the_store_before_it_is_trained_on(
    tmp_path: Path, tiny_folder: Path, monkeypatch: Any
) -> None:
    """Else a learner that dies in a step could leave a policy whose trees are unknown."""
    store, step = MemoryStore(grown), TorchThread.step

    async def dies_in_the_third(thread: TorchThread, *arguments: Any) -> Any:
        assert len(store.batches) == len(store.puts), "a step goes on without its batch"
        if len(store.puts) == 3:
            raise ConnectionAbortedError("killed")
        return await step(thread, *arguments)

    monkeypatch.setattr(TorchThread, "step", dies_in_the_third)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, recipe(5)).run()
    assert [batch.ordinal for batch, _ in store.batches] == [0, 1, 2]
    assert [policy.policy.step for policy in store.puts] == [0, 1, 2]


async def test_an_older_learner_is_refused_and_stops(tmp_path: Path, tiny_folder: Path) -> None:
    store = MemoryStore(grown)
    rig = Rig(tmp_path, tiny_folder, store, recipe(5))
    plain = store.ready

    async def taken_over(limit: int) -> tuple[list[Ready], int | None]:
        if len(store.batches) == 2:
            await store.take_epoch("another", 0)
        return await plain(limit)

    store.ready = taken_over  # type: ignore[method-assign]
    with pytest.raises(Refused, match="epoch 1 is over") as caught:
        await rig.run()
    assert caught.value.reason == "STALE_EPOCH"
    assert len(store.batches) == 2


async def test_a_held_out_row_is_refused_loudly(tmp_path: Path, tiny_folder: Path) -> None:
    def leaks(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        return grown(ordinal, policy, row=b"h" * 32 if ordinal == 3 else b"r" * 32)

    store = MemoryStore(leaks)
    with pytest.raises(Refused, match="held-out") as caught:
        await Rig(tmp_path, tiny_folder, store, recipe(5), frozenset([b"h" * 32])).run()
    assert caught.value.reason == "HELD_OUT"
    assert len(store.batches) == 1  # the batch that held it was never committed


async def test_an_evaluation_tree_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    def measures(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        trees = grown(ordinal, policy)
        trees[0].spec.purpose = tree_pb2.TREE_PURPOSE_EVAL
        return trees

    with pytest.raises(Refused, match="to measure"):
        await Rig(tmp_path, tiny_folder, MemoryStore(measures), recipe(5)).run()


async def test_a_checkpoint_whose_asker_is_gone_is_still_of_one_step(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer reads the weights in use, so the next step waits for it without a caller, too."""
    store = MemoryStore(grown)
    rig = Rig(tmp_path, tiny_folder, store, recipe(4))
    begun, go_on = threading.Event(), threading.Event()
    plain, write = store.ready, checkpoint.write

    def slow(*arguments: Any) -> Path:
        begun.set()
        assert go_on.wait(10)
        return write(*arguments)

    async def ask_and_go(limit: int) -> tuple[list[Ready], int | None]:
        assert rig.learner is not None
        if len(store.batches) == 2 and not begun.is_set():
            asked = asyncio.create_task(rig.learner.checkpoint())
            assert await asyncio.to_thread(begun.wait, 10)
            asked.cancel()
            asyncio.get_running_loop().call_later(0.5, go_on.set)
        return await plain(limit)

    monkeypatch.setattr(checkpoint, "write", slow)
    store.ready = ask_and_go  # type: ignore[method-assign]
    await rig.run()
    other = await straight(tmp_path, tiny_folder, 2)
    written = load_file(tmp_path / "checkpoints" / "step-00000002-epoch-1" / checkpoint.MODEL)
    assert all(torch.equal(written[name], tensor) for name, tensor in other.final().items())


async def test_a_checkpoint_that_cannot_be_written_leaves_the_activity_as_it_was(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Path:
        raise TemporaryError("cannot write checkpoint: No space left on device; is there room?")

    monkeypatch.setattr(checkpoint, "write", full)
    rig = Rig(tmp_path, tiny_folder, MemoryStore(grown), recipe(1))
    with pytest.raises(TemporaryError, match="No space left"):
        await rig.run()
    assert rig.learner is not None and rig.learner.at.activity == "training"
