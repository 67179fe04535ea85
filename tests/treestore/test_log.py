"""The store and its log: a new database is built up from what the log retains, and the log is purged of what all have."""

import asyncio
from pathlib import Path

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis import rpc, subjects
from services.chassis.bus import Bus
from services.treestore.service import running
from services.treestore.settings import Settings
from tests.treestore.forge import Forge


async def _begin(address: str, forge: Forge) -> TreeStoreServiceStub:
    channel = rpc.channel(address)
    runs = RunStoreServiceStub(channel)
    await rpc.call(runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest())
    await rpc.call(runs.PutRun, rs.PutRunRequest(run=forge.run(), request_id="first", gateway_epoch=1))
    return TreeStoreServiceStub(channel)


async def _closed(trees: TreeStoreServiceStub, tree_id: bytes, deadline_s: float = 10.0) -> tree_pb2.Tree:
    end = asyncio.get_running_loop().time() + deadline_s
    while True:
        found = await rpc.call(trees.ListTrees, ts.ListTreesRequest())
        if any(t.tree_id == tree_id and t.state == tree_pb2.TREE_STATE_CLOSED for t in found.trees):
            return (await rpc.call(trees.GetTree, ts.GetTreeRequest(tree_id=tree_id))).tree
        assert asyncio.get_running_loop().time() < end, found.trees
        await asyncio.sleep(0.02)


async def test_a_new_database_is_built_up_from_the_log(nats_server, tmp_path: Path) -> None:
    forge = Forge()
    spec = forge.spec()
    items = [forge.opened(spec), *forge.life(spec)]
    settings = Settings(nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "old")
    bus = await Bus.connect(nats_server.url, "test")
    async with running(settings) as (server, _loops):
        trees = await _begin(server.address, forge)
        for item in items:
            await bus.publish_bytes(item.subject, item.data, f"m{item.sequence}")
        before = await _closed(trees, spec.tree_id)
    settings = Settings(nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "new")
    async with running(settings) as (server, _loops):
        trees = await _begin(server.address, forge)
        after = await _closed(trees, spec.tree_id)
    assert list(after.segments) == list(before.segments) and list(after.leaves) == list(before.leaves)
    assert list(after.scores) == list(before.scores)
    await bus.close()


async def test_the_log_is_purged_of_what_all_consumers_have(nats_server, tmp_path: Path) -> None:
    forge = Forge()
    settings = Settings(nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "state", purge_s=0.1, purge_margin=2)
    bus = await Bus.connect(nats_server.url, "test")
    async with running(settings) as (server, _loops):
        trees = await _begin(server.address, forge)
        slow = await bus.consumer(subjects.LINEAGE, "verifier", [subjects.lineage("*", "leaf")])
        for ordinal in range(3):
            spec = forge.spec(ordinal)
            for item in [forge.opened(spec), *forge.life(spec)]:
                await bus.publish_bytes(item.subject, item.data, f"m{item.sequence}")
            await _closed(trees, spec.tree_id)
        kept = await _messages(bus)
        assert kept >= 3 * 10, "the slowest consumer has nothing yet, so nothing may go"
        for delivery in await slow.fetch(6, 5.0):
            await delivery.ack()
        end = asyncio.get_running_loop().time() + 10
        while await _messages(bus) > kept // 2:
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.05)
        assert await _messages(bus) >= 2
    await bus.close()


async def _messages(bus: Bus) -> int:
    return (await bus._js.stream_info(subjects.LINEAGE)).state.messages
