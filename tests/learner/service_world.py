"""The system around a learner: a real treestore and NATS; the test plays the other services."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest_asyncio

from banyan import digest
from banyan.errors import NotFound
from banyan.recipe import Recipe
from banyan.segment import Finish, Kind, Sampling, Segment
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from banyan.wire.segments import segment_to_wire
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc

RUN = "tiny-0000abcd"
STEPS = 4


@dataclass
class World:
    """Connections to the system, and the parts of gateway, rollout and verifier."""

    bus: Bus
    store: str
    nats: str
    folder: Path
    trees: Any
    runs: Any
    opened: int = 0
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def begin(self, recipe: Recipe) -> None:
        taking = rs.TakeGatewayEpochRequest(gateway_id="g")
        epoch = (await rpc.call(self.runs.TakeGatewayEpoch, taking)).epoch
        run = rs.Run(
            run_id=RUN,
            recipe_json=recipe.model_dump_json(),
            folder=str(self.folder),
            held_out=[b"h" * 32],
        )
        request = rs.PutRunRequest(run=run, request_id="r", gateway_epoch=epoch)
        await rpc.call(self.runs.PutRun, request)
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
        request = rs.ReadPoliciesRequest(run_id=RUN, abandoned=True)
        return list((await rpc.call(self.runs.ReadPolicies, request)).policies)

    async def step(self) -> int:
        """Return the newest step, −1 before the base model is announced."""
        progress = await rpc.call(self.runs.ReadProgress, rs.ReadProgressRequest(run_id=RUN))
        return progress.step if progress.HasField("step") else -1

    async def grow_group(self) -> None:
        """Grow a group of one tree with four scored leaves, sampled by the newest policy."""
        newest = [p.published for p in await self.policies() if not p.abandoned][-1].policy
        ordinal, self.opened = self.opened, self.opened + 1
        spec = _spec(ordinal)
        opened = events_pb2.TreeOpened(spec=spec, gateway_epoch=self.epoch)
        await self.publish("opened", events_pb2.TreesOpened(trees=[opened]), f"o{ordinal}")
        epoch = await self.claim(spec.tree_id)
        grown = segments(spec.tree_id, ordinal, newest)
        claimed = [
            events_pb2.GrownSegment(segment=segment_to_wire(segment), claim_epoch=epoch)
            for segment in grown
        ]
        event = events_pb2.SegmentsGrown(run_id=RUN, node_id="n", segments=claimed)
        await self.publish("segment", event, f"s{ordinal}")
        leaves = [tree_pb2.LeafRef(segment=s.id, end=len(s)) for s in grown[1:]]
        for index, leaf in enumerate(leaves):
            await self._finish(spec, epoch, leaf, index)
        tree = events_pb2.TreeGrown(
            run_id=RUN, tree_id=spec.tree_id, claim_epoch=epoch, leaves=leaves, node_id="n"
        )
        await self.publish("grown", events_pb2.TreesGrown(trees=[tree]), f"g{ordinal}")

    async def _finish(
        self, spec: tree_pb2.TreeSpec, epoch: int, leaf: tree_pb2.LeafRef, index: int
    ) -> None:
        """Publish the end and the score of a leaf: 1 for one of the four, else 0."""
        ordinal = spec.group_ordinal
        key: dict[str, Any] = {"run_id": RUN, "tree_id": spec.tree_id}
        finished = events_pb2.LeafFinished(**key, claim_epoch=epoch, leaf=leaf, reason="stop")
        event = events_pb2.LeavesFinished(leaves=[finished])
        await self.publish("leaf", event, f"l{ordinal}.{index}")
        score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=float(index == ordinal % 4))
        scored = tree_pb2.ScoredLeaf(leaf=leaf, scorer="s", scorer_version="1", score=score)
        scores = events_pb2.LeavesScored(scores=[events_pb2.LeafScored(**key, scored=scored)])
        await self.publish("score", scores, f"v{ordinal}.{index}")

    async def publish(self, kind: str, message: Any, msg_id: str) -> None:
        await self.bus.publish(subjects.lineage(RUN, kind), message, msg_id)

    async def claim(self, tree_id: bytes) -> int:
        for _ in range(500):
            try:
                request = ts.ClaimTreeRequest(tree_id=tree_id, node_id="n", ticket=1)
                return int((await rpc.call(self.trees.ClaimTree, request)).epoch)
            except NotFound:
                await asyncio.sleep(0.01)
        raise AssertionError(f"tree {tree_id.hex()[:12]} was never stored")


def _spec(ordinal: int) -> tree_pb2.TreeSpec:
    group, row = f"{RUN}/train/{ordinal}", digest.row_digest({"ordinal": ordinal})
    return tree_pb2.TreeSpec(
        run_id=RUN,
        tree_id=digest.tree_id(RUN, group, row, 0),
        group_id=group,
        group_ordinal=ordinal,
        group_size=1,
        row_digest=row,
        purpose=tree_pb2.TREE_PURPOSE_TRAIN,
        max_claims=5,
        seed=ordinal,
        row_json=json.dumps({"ordinal": ordinal}),
        scorers=["s"],
    )


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
        built = World(
            bus=bus,
            store=server.address,
            nats=nats_server.url,
            folder=tmp_path / "run",
            trees=TreeStoreServiceStub(channel),
            runs=RunStoreServiceStub(channel),
        )
        yield built
        for process in built.processes:
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
