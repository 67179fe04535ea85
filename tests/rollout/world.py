"""A real treestore and nats-server around rollout nodes in one process, with a run on the scripted engine."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from banyan.digest import row_digest, tree_id
from banyan.recipe_loader.load import resolve
from banyan.tree import Tree
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from banyan.wire import segments
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from services.rollout.clients import subscriptions
from services.rollout.clients.treestore import GrpcStore
from services.rollout.engines.factory import maker
from services.rollout.engines.thread import EngineThread
from services.rollout.node.config import NodeConfig
from services.rollout.node.node import Node
from services.treestore.service import running
from services.treestore.storage.settings import Settings
from tests.rollout.growing import IID

RUN = "small-00000000"
_GROWN = (tree_pb2.TREE_STATE_SCORING, tree_pb2.TREE_STATE_CLOSED)


class World:
    """What surrounds the nodes."""

    def __init__(self, bus: Bus, address: str, url: str) -> None:
        self.bus, self.address, self.url = bus, address, url
        self.channel = rpc.channel(address)
        self.trees: Any = TreeStoreServiceStub(self.channel)
        self.runs: Any = RunStoreServiceStub(self.channel)
        self.epoch = 0
        self.recipe = resolve({"name": "small", "model": "none", "task": {"name": "arithmetic"}})

    async def begin(self, **resources: Any) -> None:
        """A run whose engine has these resources."""
        changed = self.recipe.resources.model_copy(update={"engine": "scripted", **resources})
        deterministic = bool(resources.get("deterministic"))
        self.recipe = self.recipe.model_copy(
            update={"resources": changed, "deterministic": deterministic}
        )
        self.epoch = (
            await rpc.call(self.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="g"))
        ).epoch
        run = rs.Run(
            run_id=RUN, recipe_json=self.recipe.model_dump_json(), state=rs.RUN_STATE_TRAINING
        )
        await rpc.call(
            self.runs.PutRun, rs.PutRunRequest(run=run, request_id="r", gateway_epoch=self.epoch)
        )
        await rpc.call(
            self.runs.TakeLearnerEpoch, rs.TakeLearnerEpochRequest(run_id=RUN, learner_id="l")
        )

    async def policy(self, step: int) -> None:
        """The learner publishes a policy."""
        ref = tree_pb2.PolicyRef(learner_epoch=1, step=step, digest=step.to_bytes(32, "big"))
        said = events_pb2.PolicyPublished(run_id=RUN, policy=ref, path="/nowhere")
        await rpc.call(self.runs.PutPolicy, rs.PutPolicyRequest(policy=said))

    async def open(
        self,
        count: int,
        settings: Mapping[str, Any] | None = None,
        policy: str = IID,
        *,
        max_new_tokens: int = 6,
        first: int = 0,
        **more: Any,
    ) -> list[bytes]:
        """The gateway opens the trees first..count-1."""
        generate = {
            "name": policy,
            "settings": dict(settings or {"width": 4}),
            "max_new_tokens": max_new_tokens,
        }
        specs = [self._spec(ordinal, generate, more) for ordinal in range(first, count)]
        for spec in specs:
            opened = events_pb2.TreesOpened(
                trees=[events_pb2.TreeOpened(spec=spec, gateway_epoch=self.epoch)]
            )
            await self.bus.publish(subjects.lineage(RUN, "opened"), opened, spec.tree_id.hex())
        return [spec.tree_id for spec in specs]

    @staticmethod
    def _spec(
        ordinal: int, generate: Mapping[str, Any], more: Mapping[str, Any]
    ) -> tree_pb2.TreeSpec:
        group, row = f"{RUN}/train/{ordinal}", {"n": ordinal}
        return tree_pb2.TreeSpec(
            run_id=RUN,
            tree_id=tree_id(RUN, group, row_digest(row), 0),
            group_id=group,
            group_ordinal=ordinal,
            group_size=1,
            purpose=tree_pb2.TREE_PURPOSE_TRAIN,
            row_digest=row_digest(row),
            row_json=json.dumps(row),
            messages_json=json.dumps([{"role": "user", "content": f"go {ordinal}"}]),
            scorers=["number"],
            generate_json=json.dumps(generate),
            seed=1000 + ordinal,
            max_claims=5,
            **{"score_deadline_ms": 600_000, **more},
        )

    async def state(self, tree: bytes) -> tree_pb2.Tree:
        """A tree as the store has it."""
        answer: ts.GetTreeResponse = await rpc.call(
            self.trees.GetTree, ts.GetTreeRequest(tree_id=tree)
        )
        return answer.tree

    async def grown(self, ids: Sequence[bytes], deadline_s: float = 20.0) -> list[tree_pb2.Tree]:
        """Waits until trees are grown."""
        end, states = time.monotonic() + deadline_s, []
        while time.monotonic() < end:
            states = [await self._or_none(i) for i in ids]
            if all(s is not None and s.state in _GROWN for s in states):
                return [s for s in states if s is not None]
            await asyncio.sleep(0.02)
        raise AssertionError(
            f"not grown after {deadline_s} s: {[s and (s.state, len(s.segments)) for s in states]}"
        )

    async def _or_none(self, tree: bytes) -> tree_pb2.Tree | None:
        try:
            return await self.state(tree)
        except LookupError:
            return None

    @asynccontextmanager
    async def node(self, name: str = "n1", bus: Any = None, **plan: Any) -> AsyncIterator[Node]:
        """A node that runs inside the block, and drains at its end unless its task was cancelled."""
        stop, own = asyncio.Event(), await Bus.connect(self.url, name)
        thread = EngineThread(maker(self.recipe, 1), lockstep=self.recipe.deterministic)
        await thread.start()
        made = NodeConfig(
            run_id=RUN, node_id=name, max_branches=64, lockstep=self.recipe.deterministic, **plan
        )
        store = GrpcStore(rpc.channel(self.address), RUN, name)
        queue = await subscriptions.assignments(own, RUN)
        heard = subscriptions.policy_events(own, RUN), subscriptions.closed_events(own, RUN)
        node = Node(made, store, bus(own) if bus else own, queue, thread, None, *heard)
        node.task = asyncio.create_task(node.run(stop))  # type: ignore[attr-defined]
        try:
            yield node
        finally:
            stop.set()
            await asyncio.wait([node.task], timeout=15)  # type: ignore[attr-defined]
            await thread.stop()
            await own.close()
            if not node.task.cancelled():  # type: ignore[attr-defined]
                node.task.result()  # type: ignore[attr-defined]


@asynccontextmanager
async def world(url: str, folder: Path, **settings: Any) -> AsyncIterator[World]:
    """A store on SQLite beside a nats-server."""
    given = Settings(nats=url, listen="127.0.0.1:0", state=folder, tick_ms=50, **settings)
    async with running(given) as (server, _):
        bus = await Bus.connect(url, "world")
        made = World(bus, server.address, url)
        yield made
        await made.channel.close(None)
        await bus.close()


def ids(tree: tree_pb2.Tree) -> set[bytes]:
    """Ids of a tree's segments, each checked against its fields."""
    read: Tree = segments.tree_from_wire(tree)
    return set(read.segments)
