"""`python -m services.learner` against a real treestore, NATS and gRPC, through kill -9."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from banyan import digest
from banyan.errors import InvalidInput, NotFound
from banyan.recipe import Recipe
from banyan.segment import Finish, Kind, Sampling, Segment
from banyan.v1 import events_pb2, learner_service_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.learner_service_pb2_grpc import LearnerServiceStub
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from banyan.wire.segments import segment_to_wire
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.process.nats_server import free_port
from services.chassis.rpc import rpc
from services.chassis.weights import file

RUN = "tiny-0000abcd"
STEPS = 4
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
GRPO = '{"name": "methods.advantages.grpo:Grpo"}'


@dataclass
class World:
    """The system around a learner: the test plays gateway, rollout and verifier."""

    bus: Bus
    store: str
    nats: str
    folder: Path
    trees: Any
    runs: Any
    opened: int = 0
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def begin(self, recipe: Recipe) -> None:
        epoch = (
            await rpc.call(self.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="g"))
        ).epoch
        run = rs.Run(
            run_id=RUN,
            recipe_json=recipe.model_dump_json(),
            folder=str(self.folder),
            held_out=[b"h" * 32],
        )
        await rpc.call(
            self.runs.PutRun, rs.PutRunRequest(run=run, request_id="r", gateway_epoch=epoch)
        )
        self.epoch = epoch

    async def start(self) -> asyncio.subprocess.Process:
        """Start a learner process."""
        environ = dict(
            os.environ,
            BANYAN_RUN=RUN,
            BANYAN_STORE=self.store,
            BANYAN_NATS=self.nats,
            BANYAN_THREADS="1",
        )
        environ |= {
            "BANYAN_STATE": str(self.folder),
            "BANYAN_WEIGHTS": str(self.folder / "weights"),
            "BANYAN_TICK_S": "0.5",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.learner", env=environ
        )
        self.processes.append(process)
        return process

    async def policies(self) -> list[rs.StoredPolicy]:
        return list(
            (
                await rpc.call(
                    self.runs.ReadPolicies, rs.ReadPoliciesRequest(run_id=RUN, abandoned=True)
                )
            ).policies
        )

    async def step(self) -> int:
        """Return the newest step, −1 before the base model is announced."""
        progress = await rpc.call(self.runs.ReadProgress, rs.ReadProgressRequest(run_id=RUN))
        return progress.step if progress.HasField("step") else -1

    async def grow_group(self) -> None:
        """Grow a group of one tree with four scored leaves, sampled by the newest policy."""
        newest = [p.published for p in await self.policies() if not p.abandoned][-1].policy
        ordinal, self.opened = self.opened, self.opened + 1
        group, row = f"{RUN}/train/{ordinal}", digest.row_digest({"ordinal": ordinal})
        tree_id = digest.tree_id(RUN, group, row, 0)
        spec = tree_pb2.TreeSpec(
            run_id=RUN,
            tree_id=tree_id,
            group_id=group,
            group_ordinal=ordinal,
            group_size=1,
            row_digest=row,
        )
        spec.purpose, spec.max_claims, spec.seed = tree_pb2.TREE_PURPOSE_TRAIN, 5, ordinal
        spec.row_json = json.dumps({"ordinal": ordinal})
        spec.scorers.append("s")
        opened = events_pb2.TreesOpened(
            trees=[events_pb2.TreeOpened(spec=spec, gateway_epoch=self.epoch)]
        )
        await self.publish("opened", opened, f"o{ordinal}")
        epoch = await self.claim(tree_id)
        made = segments(tree_id, ordinal, newest)
        claimed = [
            events_pb2.GrownSegment(segment=segment_to_wire(s), claim_epoch=epoch) for s in made
        ]
        await self.publish(
            "segment",
            events_pb2.SegmentsGrown(run_id=RUN, node_id="n", segments=claimed),
            f"s{ordinal}",
        )
        leaves = [tree_pb2.LeafRef(segment=s.id, end=len(s)) for s in made[1:]]
        for i, leaf in enumerate(leaves):
            finished = events_pb2.LeafFinished(
                run_id=RUN, tree_id=tree_id, claim_epoch=epoch, leaf=leaf, reason="stop"
            )
            await self.publish(
                "leaf", events_pb2.LeavesFinished(leaves=[finished]), f"l{ordinal}.{i}"
            )
            score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=float(i == ordinal % 4))
            scored = tree_pb2.ScoredLeaf(leaf=leaf, scorer="s", scorer_version="1", score=score)
            output = events_pb2.LeafScored(run_id=RUN, tree_id=tree_id, scored=scored)
            await self.publish("score", events_pb2.LeavesScored(scores=[output]), f"v{ordinal}.{i}")
        grown = events_pb2.TreeGrown(
            run_id=RUN, tree_id=tree_id, claim_epoch=epoch, leaves=leaves, node_id="n"
        )
        await self.publish("grown", events_pb2.TreesGrown(trees=[grown]), f"g{ordinal}")

    async def publish(self, kind: str, message: Any, msg_id: str) -> None:
        await self.bus.publish(subjects.lineage(RUN, kind), message, msg_id)

    async def claim(self, tree_id: bytes) -> int:
        for _ in range(500):
            try:
                answer = await rpc.call(
                    self.trees.ClaimTree,
                    ts.ClaimTreeRequest(tree_id=tree_id, node_id="n", ticket=1),
                )
                return int(answer.epoch)
            except NotFound:
                await asyncio.sleep(0.01)
        raise AssertionError(f"tree {tree_id.hex()[:12]} was never stored")


def segments(tree_id: bytes, ordinal: int, policy: tree_pb2.PolicyRef) -> list[Segment]:
    """Return a prompt with four answers."""
    rng = np.random.default_rng(ordinal)
    root = Segment(tree_id, b"", 0, 0, Kind.PROMPT, rng.integers(0, 40, 5))
    common = {
        "policy": policy.digest,
        "policy_epoch": policy.learner_epoch,
        "policy_step": policy.step,
        "finish": Finish.STOP,
    }
    sampling = Sampling(max_new_tokens=3, seed=ordinal)
    answers = [
        Segment(
            tree_id,
            root.id,
            5,
            i,
            Kind.POLICY,
            rng.integers(0, 40, 3),
            -rng.random(3) * 4,
            sampling=sampling,
            **common,
        )
        for i in range(4)
    ]
    return [root, *answers]


@pytest_asyncio.fixture
async def world(nats_server: Any, tmp_path: Path) -> AsyncIterator[World]:
    from services.treestore.service import running
    from services.treestore.storage.settings import Settings

    settings = Settings(nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "state")
    settings.state.mkdir()
    async with running(settings) as (server, _):
        bus = await Bus.connect(nats_server.url, "test")
        channel = rpc.channel(server.address)
        stubs = TreeStoreServiceStub(channel), RunStoreServiceStub(channel)
        here = World(bus, server.address, nats_server.url, tmp_path / "run", *stubs)
        yield here
        for process in here.processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
        await channel.close(None)
        await bus.close()


def recipe(model: Path) -> Recipe:
    data: dict[str, Any] = {
        "name": "tiny",
        "model": str(model),
        "task": {"name": "arithmetic"},
        "budget": {"steps": STEPS},
    }
    data |= {
        "control": {"groups_per_batch": 2},
        "resources": {"dtype": "float32"},
        "deterministic": True,
    }
    data["optimise"] = {
        "advantage": "methods.advantages.grpo:Grpo",
        "learning_rate": 1e-2,
        "checkpoint_every": 100,
    }
    return Recipe.model_validate(data)


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
