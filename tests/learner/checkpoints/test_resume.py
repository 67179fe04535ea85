"""The loop after a death or an interrupt: batches are replayed in order, to the same bits."""

import asyncio
from pathlib import Path

import pytest
import torch

from banyan.errors import TemporaryError
from banyan.v1 import events_pb2, tree_pb2
from services.learner.checkpoints import checkpoint
from services.learner.ports import StoredBatch
from tests.learner.in_memory_learner import RUN, MemoryStore, Rig, grown, recipe, straight


@pytest.mark.parametrize("every", [100, 1, 2])
@pytest.mark.parametrize("dies_at", [0, 2, 4])
async def test_a_learner_that_dies_between_commit_and_training_ends_with_the_same_bits(
    tmp_path: Path, tiny_folder: Path, every: int, dies_at: int
) -> None:
    expected = await straight(tmp_path, tiny_folder)
    store = MemoryStore(grown, die_after_commit=dies_at)
    folder = tmp_path / "killed"
    with pytest.raises(ConnectionAbortedError):
        await Rig(folder, tiny_folder, store, recipe(5, checkpoint_every=every)).run()
    before = len(store.puts)
    assert len(store.batches) == dies_at + 1
    store.die_after_commit = -1
    again = Rig(folder, tiny_folder, store, recipe(5, checkpoint_every=every))
    await again.run()
    assert [b.ordinal for b, _ in store.batches] == [0, 1, 2, 3, 4]
    assert [e for _, e in store.batches] == [1] * (dies_at + 1) + [2] * (4 - dies_at)
    # No known policy is announced again, yet each is on the path from base to final policy.
    assert [p.policy.step for p in store.puts[before:]] == list(range(dies_at + 1, 6))
    path = [(p.policy.step, p.batch_ordinal) for p in store.live if p.policy.step]
    assert path == [(ordinal + 1, ordinal) for ordinal in range(5)]
    assert store.puts[-1].policy.digest == expected.store.puts[-1].policy.digest
    assert [b.summary for b, _ in store.batches] == [b.summary for b, _ in expected.store.batches]
    one, two = expected.final(), again.final()
    assert all(torch.equal(one[n], two[n]) for n in one)


async def test_a_policy_is_announced_again_if_the_replay_makes_other_weights(
    tmp_path: Path, tiny_folder: Path
) -> None:
    store = MemoryStore(grown, die_after_commit=3)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path / "a", tiny_folder, store, recipe(5)).run()
    store.die_after_commit = -1
    before = len(store.puts)
    other = recipe(5, learning_rate=2e-2)  # as another machine might round differently
    await Rig(tmp_path / "a", tiny_folder, store, other).run()
    assert [(p.policy.learner_epoch, p.policy.step) for p in store.puts[before:]] == [
        (2, s) for s in range(1, 6)
    ]
    chain, by_digest = [], {p.policy.digest: p for p in store.live}
    at = store.live[-1]
    while at.parent_digest:
        chain.append(at.batch_ordinal)
        at = by_digest[at.parent_digest]
    assert chain == [4, 3, 2, 1, 0]


async def test_too_old_leaves_are_left_out_and_a_replay_leaves_out_the_same(
    tmp_path: Path, tiny_folder: Path
) -> None:
    def from_the_base(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        trees = grown(ordinal, policy)
        if ordinal == 4:  # sampled by the base model, consumed by step 2
            return grown(ordinal, store.puts[0].policy.digest)
        return trees

    store = MemoryStore(from_the_base, die_after_commit=3)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, recipe(5)).run()
    summary = store.batches[2][0].summary
    assert summary["metrics"]["stale_leaves"] == 4
    assert "0 scored leaves" in summary["groups"][0]["skip"]
    known = store.puts[-1].policy.digest
    store.die_after_commit = -1
    await Rig(tmp_path, tiny_folder, store, recipe(5)).run()
    assert known in {p.policy.digest for p in store.puts}
    replayed = [p for p in store.puts if p.policy.learner_epoch == 2]
    assert [p.policy.step for p in replayed] == [4, 5]  # steps 1 to 3 came out as before


async def test_an_interrupted_learner_leaves_a_checkpoint_and_the_next_goes_on(
    tmp_path: Path, tiny_folder: Path
) -> None:
    expected = await straight(tmp_path, tiny_folder)
    store = MemoryStore(grown)
    stop = asyncio.Event()
    plain = store.put_policy

    async def interrupt(policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        await plain(policy, replayed)
        if policy.policy.step == 2:
            stop.set()

    store.put_policy = interrupt  # type: ignore[method-assign]
    first = Rig(tmp_path / "two", tiny_folder, store, recipe(5))
    await first.run(stop)
    newest = checkpoint.newest(tmp_path / "two" / "checkpoints", RUN)
    assert newest is not None and (newest[1].step, newest[1].next_ordinal) == (2, 2)
    store.put_policy = plain  # type: ignore[method-assign]
    second = Rig(tmp_path / "two", tiny_folder, store, recipe(5))
    await second.run()
    assert [p.policy.step for p in store.puts] == [0, 1, 2, 2, 3, 4, 5]
    again = store.puts[3]
    assert (again.policy.learner_epoch, again.batch_ordinal, again.parent_digest) == (
        2,
        1,
        store.puts[2].parent_digest,
    )
    one, two = expected.final(), second.final()
    assert all(torch.equal(one[n], two[n]) for n in one)


async def test_an_interrupt_in_the_middle_of_a_replay_keeps_what_was_replayed(
    tmp_path: Path, tiny_folder: Path
) -> None:
    store = MemoryStore(grown, die_after_commit=3)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, recipe(5)).run()
    store.die_after_commit = -1
    stop, plain = asyncio.Event(), store.batch

    async def interrupt(ordinal: int) -> StoredBatch | None:
        if ordinal == 1:
            stop.set()
        return await plain(ordinal)

    store.batch = interrupt  # type: ignore[method-assign]
    await Rig(tmp_path, tiny_folder, store, recipe(5)).run(stop)
    newest = checkpoint.newest(tmp_path / "checkpoints", RUN)
    assert newest is not None and (newest[1].step, newest[1].next_ordinal) == (2, 2)
    store.batch = plain  # type: ignore[method-assign]
    last = Rig(tmp_path, tiny_folder, store, recipe(5))
    await last.run()
    expected = await straight(tmp_path, tiny_folder)
    one, two = expected.final(), last.final()
    assert all(torch.equal(one[n], two[n]) for n in one)


async def test_no_checkpoint_is_given_out_before_the_replay_is_done(
    tmp_path: Path, tiny_folder: Path
) -> None:
    """Else a run could succeed with a checkpoint of half its steps, or another step's weights."""
    store = MemoryStore(grown, die_after_commit=3)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, recipe(4)).run()
    store.die_after_commit = -1
    rig, plain, refused = Rig(tmp_path, tiny_folder, store, recipe(4)), store.batch, []

    async def ask(ordinal: int) -> StoredBatch | None:
        assert rig.learner is not None
        with pytest.raises(TemporaryError, match=r"training batch \d+ again") as caught:
            await rig.learner.checkpoint()
        refused.append((ordinal, caught.value.reason))
        return await plain(ordinal)

    store.batch = ask  # type: ignore[method-assign]
    await rig.run()
    asked = (0, 1, 2, 3, 0)  # the last by the probe of the drift
    assert refused == [(ordinal, "TAKING_OVER") for ordinal in asked]
    newest = checkpoint.newest(tmp_path / "checkpoints", RUN)
    assert newest is not None and newest[1].step == 4
