"""`python -m services.learner` against a real treestore, NATS and gRPC, through kill -9."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from banyan.errors import InvalidInput
from banyan.runtime.ports import free_port
from banyan.v1 import events_pb2, learner_service_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.learner_service_pb2_grpc import LearnerServiceStub
from services.chassis.rpc import rpc
from services.chassis.weights import file
from tests.learner.service_world import RUN, STEPS, World, recipe, world

__all__ = ["RUN", "STEPS", "World", "recipe", "world"]  # a fixture, and names for other tests
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
GRPO = '{"name": "methods.advantages.grpo:Grpo"}'


@pytest.mark.faults
async def test_a_run_is_trained_through_kills(
    world: World, tiny_folder: Path, eventually: Callable[..., Awaitable[None]]
) -> None:
    await world.begin(recipe(tiny_folder))
    process = await world.start()

    async def at(step: int) -> None:
        async def reached() -> bool:
            assert world.processes[-1].returncode is None, "the learner ended"
            return await world.step() >= step

        await eventually(reached, 40, f"policy step {step}")

    await at(0)
    for step in range(2):
        await world.grow_group()
        await world.grow_group()
        await at(step + 1)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    before = {p.published.policy.step: p.published.policy.digest for p in await world.policies()}
    process = await world.start()
    await at(2)
    for step in range(2, STEPS):
        await world.grow_group()
        await world.grow_group()
        await at(step + 1)
    stored = await world.policies()
    live = [p.published for p in stored if not p.abandoned]
    assert {p.policy.step: p.policy.digest for p in live if p.policy.step == 2} == {2: before[2]}
    assert live[-1].policy.step == STEPS
    assert [p.published.policy.learner_epoch for p in stored if p.abandoned] == [1, 1]
    await _weights(world, live[-1])
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == 0
    assert not (world.folder / "weights").exists()
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        world.folder / "checkpoints" / f"step-{STEPS:08d}-epoch-2"
    )
    assert loaded.config.vocab_size == 40


async def _weights(world: World, policy: events_pb2.PolicyPublished) -> None:
    """Check that FetchWeights gives the file from two offsets, and that the other calls answer."""
    channel = rpc.channel(policy.address)
    stub: Any = LearnerServiceStub(channel)
    request = learner_service_pb2.FetchWeightsRequest(digest=policy.policy.digest)
    got = [piece async for piece in stub.FetchWeights(request)]
    manifest = file.from_json(got[0].manifest_json, world.folder / "fetched.bin")
    manifest.path.write_bytes(b"".join(p.data for p in got))
    assert file.digest_of(manifest.path) == manifest.digest == policy.policy.digest
    request.offset = 1000
    rest = [piece async for piece in stub.FetchWeights(request)]
    assert b"".join(p.data for p in rest) == manifest.path.read_bytes()[1000:]
    request.offset = 10**12
    with pytest.raises(grpc.RpcError) as caught:
        _ = [piece async for piece in stub.FetchWeights(request)]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        _ = [
            piece
            async for piece in stub.FetchWeights(
                learner_service_pb2.FetchWeightsRequest(digest=b"?" * 32)
            )
        ]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    status = await rpc.call(stub.GetStatus, learner_service_pb2.LearnerServiceGetStatusRequest())
    assert (status.run_id, status.policy.step, status.next_ordinal) == (RUN, STEPS, STEPS)
    written = await rpc.call(stub.Checkpoint, learner_service_pb2.CheckpointRequest())
    assert (Path(written.path) / "manifest.json").is_file()
    await _advantages(world, stub)
    await channel.close(None)


async def _advantages(world: World, stub: Any) -> None:
    wanted = ts.TreeFilter(run_id=RUN, states=[tree_pb2.TREE_STATE_CONSUMED])
    trees = [
        answer.tree
        async for answer in world.trees.StreamTrees(ts.StreamTreesRequest(filter=wanted))
    ]
    request = learner_service_pb2.EstimateAdvantagesRequest(trees=trees[:1], estimator_json=GRPO)
    advantages = list((await rpc.call(stub.EstimateAdvantages, request)).advantages)
    assert [a.paths for a in advantages] == [4, 1, 1, 1, 1]
    assert sorted(a.advantage for a in advantages[1:]) == pytest.approx(
        [-0.5, -0.5, -0.5, 1.5], abs=1e-4
    )
    assert (
        advantages[0].advantage,
        advantages[0].positive,
        advantages[0].negative,
    ) == pytest.approx((0, 1.5, -1.5), abs=1e-4)
    request.estimator_json = '{"name": 7'
    with pytest.raises(InvalidInput, match="estimator_json"):
        await rpc.call(stub.EstimateAdvantages, request)


async def test_a_learner_without_a_run_is_refused(world: World) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "BANYAN_RUN"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.learner", env=environ, stderr=asyncio.subprocess.PIPE
    )
    _, output = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert b"BANYAN_RUN is not set" in output


async def test_it_serves_only_once_its_model_is_loaded(nats_server: Any, tmp_path: Path) -> None:
    """The supervisor waits for the checkpoint of a serving learner, not of one that loads."""
    address = f"127.0.0.1:{free_port()}"
    environ = {
        "BANYAN_RUN": RUN,
        "BANYAN_STORE": "127.0.0.1:9",
        "BANYAN_LISTEN": address,
        "BANYAN_STATE": str(tmp_path),
    }
    environ |= {**os.environ, "BANYAN_NATS": nats_server.url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.learner", env=environ
    )
    try:
        async with rpc.channel(address) as channel, asyncio.timeout(20):
            check = health_pb2_grpc.HealthStub(channel).Check
            while (
                await check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            ).status != NOT_SERVING:
                await asyncio.sleep(0.05)
    finally:
        process.kill()
        await process.wait()
