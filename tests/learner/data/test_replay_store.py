"""A real learner that is killed over the real store trains again on what its batches recorded."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from banyan.recipe import Recipe
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.rpc import rpc
from tests.learner.test_service import RUN, World, recipe, world

__all__ = ["world"]  # the fixture


def replaying(model: Path) -> Recipe:
    data = recipe(model).model_dump()
    data["optimise"] |= {"loss": "decoupled", "epochs": 2}
    return Recipe.model_validate(
        {**data, "replay": {"policy": "recent", "fraction": 0.5, "max_age": 2}}
    )


async def batch(world: World, ordinal: int) -> ts.Batch:
    answer: ts.ReadBatchResponse = await rpc.call(
        world.trees.ReadBatch, ts.ReadBatchRequest(run_id=RUN, ordinal=ordinal)
    )
    return answer.batch


@pytest.mark.faults
async def test_a_killed_learner_trains_what_was_replayed_again(
    world: World, tiny_folder: Path, eventually: Callable[..., Awaitable[None]]
) -> None:
    await world.begin(replaying(tiny_folder))
    process = await world.start()

    async def at(step: int) -> None:
        async def reached() -> bool:
            assert world.processes[-1].returncode is None, "the learner ended"
            return await world.step() >= step

        await eventually(reached, 60, f"policy step {step}")

    await at(0)
    for step in range(3):
        await world.grow_group()
        await world.grow_group()
        await at(step + 1)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    before = {p.published.policy.step: p.published.policy.digest for p in await world.policies()}
    process = await world.start()
    await world.grow_group()
    await world.grow_group()
    await at(4)
    stored = await world.policies()
    live = {p.published.policy.step: p.published for p in stored if not p.abandoned}
    assert [live[step].policy.digest for step in range(4)] == [before[step] for step in range(4)]
    assert {
        p.published.policy.learner_epoch
        for p in stored
        if not p.abandoned and p.published.policy.step
    } == {2}
    batches = [await batch(world, ordinal) for ordinal in range(4)]
    assert [len(stored_batch.replayed) for stored_batch in batches] == [0, 2, 2, 2]
    consumed = {
        tree: stored_batch.ordinal for stored_batch in batches for tree in stored_batch.tree_ids
    }
    assert all(
        stored_batch.ordinal - 2 <= consumed[r.tree_id] < stored_batch.ordinal
        for stored_batch in batches
        for r in stored_batch.replayed
    )
    assert [live[step].metrics["replay_share"] for step in (1, 2)] == [0.0, 0.5]
    await _lineage(world, batches)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == 0


async def _lineage(world: World, batches: list[ts.Batch]) -> None:
    """Check that a segment knows the batches that consumed and replayed it, with their policies."""
    tree: Any = (
        await rpc.call(
            world.trees.GetTree, ts.GetTreeRequest(tree_id=batches[1].replayed[0].tree_id)
        )
    ).tree
    answer = await rpc.call(
        world.trees.ListConsumers, ts.ListConsumersRequest(segment=tree.segments[1].id)
    )
    expected = [
        stored_batch.ordinal
        for stored_batch in batches
        if tree.spec.tree_id in {r.tree_id for r in stored_batch.replayed}
    ]
    consumers = [
        (consumer.batch.ordinal, consumer.batch.use, consumer.policy.step)
        for consumer in answer.consumers
    ]
    assert consumers == [(0, "train", 1)] + [
        (ordinal, "replay", ordinal + 1) for ordinal in expected
    ]
