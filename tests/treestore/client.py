"""A client of a store that runs in this process, in the roles of gateway, rollout and verifier."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from services.treestore.ingest.item import Item
from services.treestore.service import running
from services.treestore.storage.settings import Settings
from tests.treestore.forge import Forge


@dataclass
class Store:
    """A client of the store and of the log, with a run in it."""

    bus: Bus
    trees: TreeStoreServiceStub
    runs: RunStoreServiceStub
    forge: Forge
    channel: grpc.aio.Channel
    address: str
    loops: "asyncio.Future[None] | None" = None

    async def publish(self, *items: Item, prefix: str = "") -> int:
        """Publish messages on the log, and return the last sequence; `prefix` is a prefix of the
        message ids.
        """
        sequence = 0
        for item in items:
            sequence = await self.bus.publish_bytes(
                item.subject, item.data, f"{prefix}{item.sequence}"
            )
        return sequence

    async def begin(self) -> None:
        """Take the epochs, and store the run."""
        epoch = (
            await rpc.call(self.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="g"))
        ).epoch
        put = rs.PutRunRequest(run=self.forge.run(), request_id="first", gateway_epoch=epoch)
        await rpc.call(self.runs.PutRun, put)
        take = rs.TakeLearnerEpochRequest(run_id=self.forge.run_id, learner_id="l")
        assert (await rpc.call(self.runs.TakeLearnerEpoch, take)).epoch == 1

    async def grow(self, spec: tree_pb2.TreeSpec) -> None:
        """Publish the whole life of a tree, and wait until it is stored."""
        await self.publish(self.forge.opened(spec))
        epoch = await self.claim(spec.tree_id)
        items = self.forge.life(spec, epoch=epoch)
        await self.publish(*items)
        ids = [
            s.segment.id for i in items if i.subject.endswith("segment") for s in _grown(i).segments
        ]
        wait = ts.AwaitIngestedRequest(
            tree_id=spec.tree_id, epoch=epoch, segment_ids=ids, grown=True, deadline_ms=10_000
        )
        answer = await rpc.call(self.trees.AwaitIngested, wait, deadline_s=15)
        assert answer.grown and not answer.missing

    async def claim(self, tree_id: bytes) -> int:
        """Claim a tree as soon as the store has it."""
        for _ in range(500):
            try:
                request = ts.ClaimTreeRequest(tree_id=tree_id, node_id="node-1", ticket=1)
                return (await rpc.call(self.trees.ClaimTree, request)).epoch
            except LookupError:
                await asyncio.sleep(0.01)
        raise AssertionError("the tree was never stored")


def _grown(item: Item) -> events_pb2.SegmentsGrown:
    return events_pb2.SegmentsGrown.FromString(item.data)


@contextlib.asynccontextmanager
async def served(nats: str, state: Path, begin: bool = True, **more: Any) -> AsyncIterator[Store]:
    """Yield a client of a new store, with a run in it unless `begin` is false."""
    settings = Settings(nats=nats, listen="127.0.0.1:0", state=state, tick_ms=50, **more)
    async with running(settings) as (server, loops):
        bus = await Bus.connect(nats, "test")
        channel = rpc.channel(server.address)
        trees, runs = TreeStoreServiceStub(channel), RunStoreServiceStub(channel)
        client = Store(bus, trees, runs, Forge(), channel, server.address, loops)
        if begin:
            await client.begin()
        yield client
        await channel.close()
        await bus.close()
