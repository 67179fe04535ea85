"""A run on a real treestore and nats-server, with rollout nodes on the scripted engine."""

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
from banyan.wire.generate_spec import EnvironmentSpec
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
    """The surroundings of nodes: store, bus and run."""

    def __init__(self, bus: Bus, address: str, url: str) -> None:
        self.bus, self.address, self.url = bus, address, url
        self.channel = rpc.channel(address)
        self.trees: Any = TreeStoreServiceStub(self.channel)
        self.runs: Any = RunStoreServiceStub(self.channel)
        self.epoch = 0
        self.recipe = resolve({"name": "small", "model": "none", "task": {"name": "arithmetic"}})

    async def begin(self, **resources: Any) -> None:
        """Begin a run whose engine has these resources."""
        update = {"engine": "scripted", **resources}
        self.recipe = self.recipe.model_copy(
            update={
                "resources": self.recipe.resources.model_copy(update=update),
                "deterministic": bool(resources.get("deterministic")),
            }
        )
        taken = await rpc.call(
            self.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="g")
        )
        self.epoch = taken.epoch
        run = rs.Run(
            run_id=RUN, recipe_json=self.recipe.model_dump_json(), state=rs.RUN_STATE_TRAINING
        )
        request = rs.PutRunRequest(run=run, request_id="r", gateway_epoch=self.epoch)
        await rpc.call(self.runs.PutRun, request)
        learner = rs.TakeLearnerEpochRequest(run_id=RUN, learner_id="l")
        await rpc.call(self.runs.TakeLearnerEpoch, learner)

    async def policy(self, step: int) -> None:
        """Publish a policy as the learner does."""
        ref = tree_pb2.PolicyRef(learner_epoch=1, step=step, digest=step.to_bytes(32, "big"))
        published = events_pb2.PolicyPublished(run_id=RUN, policy=ref, path="/nowhere")
        await rpc.call(self.runs.PutPolicy, rs.PutPolicyRequest(policy=published))

    async def open(
        self,
        count: int,
        settings: Mapping[str, Any] | None = None,
        policy: str = IID,
        *,
        max_new_tokens: int = 6,
        first: int = 0,
        growth: Mapping[str, Any] | None = None,
        environment: EnvironmentSpec | None = None,
        **more: Any,
    ) -> list[bytes]:
        """Open the trees first..count-1 as the gateway does; return their ids.

        growth: more of what says how they grow.
        """
        generate: dict[str, Any] = {
            "name": policy,
            "settings": dict(settings or {"width": 4}),
            "max_new_tokens": max_new_tokens,
            **(growth or {}),
        }
        if environment is not None:
            generate["environment"] = environment.plain()
        specs = [self._spec(ordinal, generate, more) for ordinal in range(first, count)]
        for spec in specs:
            opened = events_pb2.TreeOpened(spec=spec, gateway_epoch=self.epoch)
            message = events_pb2.TreesOpened(trees=[opened])
            subject = subjects.lineage(RUN, "opened")
            await self.bus.publish(subject, message, spec.tree_id.hex())
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
        """Return a tree as the store has it."""
        answer: ts.GetTreeResponse = await rpc.call(
            self.trees.GetTree, ts.GetTreeRequest(tree_id=tree)
        )
        return answer.tree

    async def grown(self, ids: Sequence[bytes], deadline_s: float = 20.0) -> list[tree_pb2.Tree]:
        """Wait until trees are grown; return them."""
        end = time.monotonic() + deadline_s
        states: list[tree_pb2.Tree | None] = []
        while time.monotonic() < end:
            states = [await self._or_none(tree) for tree in ids]
            grown = [state for state in states if state is not None and state.state in _GROWN]
            if len(grown) == len(ids):
                return grown
            await asyncio.sleep(0.02)
        reached = [state and (state.state, len(state.segments)) for state in states]
        raise AssertionError(f"not grown after {deadline_s} s: {reached}")

    async def _or_none(self, tree: bytes) -> tree_pb2.Tree | None:
        try:
            return await self.state(tree)
        except LookupError:
            return None

    @asynccontextmanager
    async def node(
        self, name: str = "n1", bus: Any = None, environments: Any = None, **config: Any
    ) -> AsyncIterator[Node]:
        """Run a node within the block. It drains at the end unless its task was cancelled."""
        stop, own = asyncio.Event(), await Bus.connect(self.url, name)
        lockstep = self.recipe.deterministic
        thread = EngineThread(maker(self.recipe, 1), lockstep=lockstep)
        await thread.start()
        node = Node(
            NodeConfig(run_id=RUN, node_id=name, max_branches=64, lockstep=lockstep, **config),
            GrpcStore(rpc.channel(self.address), RUN, name),
            bus(own) if bus else own,
            await subscriptions.assignments(own, RUN),
            thread=thread,
            weights=None,
            environments=environments,
            triggers=subscriptions.policy_events(own, RUN),
            closings=subscriptions.closed_events(own, RUN),
        )
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
    """Run a store on SQLite within the block, beside a nats-server."""
    store = Settings(nats=url, listen="127.0.0.1:0", state=folder, tick_ms=50, **settings)
    async with running(store) as (server, _):
        bus = await Bus.connect(url, "world")
        surroundings = World(bus, server.address, url)
        yield surroundings
        await surroundings.channel.close(None)
        await bus.close()


def ids(tree: tree_pb2.Tree) -> set[bytes]:
    """Return the ids of a tree's segments, each checked against its fields."""
    read: Tree = segments.tree_from_wire(tree)
    return set(read.segments)
