"""The store and its log: a new database is built up from the retained messages, and messages that
all consumers have are purged.
"""

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from nats.js import api

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.streams import StreamState
from services.chassis.rpc import rpc
from services.treestore.loops.maintenance import Maintenance
from services.treestore.loops.outbox import Outbox
from services.treestore.service import running
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.context import Context
from tests.treestore.forge import Forge, World


async def _begin(address: str, forge: Forge) -> TreeStoreServiceStub:
    channel = rpc.channel(address)
    runs = RunStoreServiceStub(channel)
    await rpc.call(runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest())
    await rpc.call(
        runs.PutRun, rs.PutRunRequest(run=forge.run(), request_id="first", gateway_epoch=1)
    )
    return TreeStoreServiceStub(channel)


async def _closed(
    trees: TreeStoreServiceStub, tree_id: bytes, deadline_s: float = 10.0
) -> tree_pb2.Tree:
    end = asyncio.get_running_loop().time() + deadline_s
    while True:
        listed = await rpc.call(trees.ListTrees, ts.ListTreesRequest())
        if any(
            t.tree_id == tree_id and t.state == tree_pb2.TREE_STATE_CLOSED for t in listed.trees
        ):
            return (await rpc.call(trees.GetTree, ts.GetTreeRequest(tree_id=tree_id))).tree
        assert asyncio.get_running_loop().time() < end, listed.trees
        await asyncio.sleep(0.02)


async def test_a_new_database_is_built_up_from_the_log(nats_server, tmp_path: Path) -> None:
    forge = Forge()
    spec = forge.spec()
    items = [forge.opened(spec), *forge.life(spec)]
    settings = Settings(
        nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "old", rebuild=True
    )
    bus = await Bus.connect(nats_server.url, "test")
    async with running(settings) as (server, _loops):
        trees = await _begin(server.address, forge)
        for item in items:
            await bus.publish_bytes(item.subject, item.data, f"m{item.sequence}")
        before = await _closed(trees, spec.tree_id)
    settings = Settings(
        nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "new", rebuild=True
    )
    async with running(settings) as (server, _loops):
        trees = await _begin(server.address, forge)
        after = await _closed(trees, spec.tree_id)
    assert list(after.segments) == list(before.segments) and list(after.leaves) == list(
        before.leaves
    )
    assert list(after.scores) == list(before.scores)
    await bus.close()


async def test_a_copy_that_was_put_back_reads_the_log_once_its_name_is_taken_from_it(
    nats_server, tmp_path: Path
) -> None:
    """As docs/operations.md says: the broker keeps the place that the store has read to, after the
    events that a copy lacks.
    """
    forge = Forge()
    specs = [forge.spec(ordinal) for ordinal in range(3)]
    settings = Settings(nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path, rebuild=True)
    bus = await Bus.connect(nats_server.url, "test")
    async with running(settings) as (server, _loops):
        await _begin(server.address, forge)
        await _lived(bus, server.address, forge, specs[0])
    shutil.copy(tmp_path / "store.sqlite", tmp_path / "copy")
    async with running(settings) as (server, _loops):
        before = await _lived(bus, server.address, forge, specs[1])
    shutil.copy(tmp_path / "copy", tmp_path / "store.sqlite")
    async with running(settings) as (server, _loops):
        await _lived(bus, server.address, forge, specs[2])
        assert await _trees(server.address) == {specs[0].tree_id, specs[2].tree_id}
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as db, db:
        assert db.execute("delete from meta where key = 'store_id'").rowcount == 1
    async with running(settings) as (server, _loops):
        after = await _closed(TreeStoreServiceStub(rpc.channel(server.address)), specs[1].tree_id)
        assert await _trees(server.address) == {spec.tree_id for spec in specs}
    assert list(after.segments) == list(before.segments) and list(after.scores) == list(
        before.scores
    )
    await bus.close()


async def _lived(bus: Bus, address: str, forge: Forge, spec: tree_pb2.TreeSpec) -> tree_pb2.Tree:
    """Publish a tree's whole life on the log, under a claim that no store issued."""
    for item in (forge.opened(spec), *forge.life(spec, epoch=3)):
        await bus.publish_bytes(item.subject, item.data, f"m{item.sequence}")
    return await _closed(TreeStoreServiceStub(rpc.channel(address)), spec.tree_id)


async def _trees(address: str) -> set[bytes]:
    listed = await rpc.call(
        TreeStoreServiceStub(rpc.channel(address)).ListTrees, ts.ListTreesRequest()
    )
    return {tree.tree_id for tree in listed.trees}


async def test_the_log_is_purged_of_what_all_consumers_have(nats_server, tmp_path: Path) -> None:
    forge = Forge()
    settings = Settings(
        nats=nats_server.url,
        listen="127.0.0.1:0",
        state=tmp_path / "state",
        purge_s=0.1,
        purge_margin=2,
        rebuild=True,
    )  # no node claims its trees
    bus = await Bus.connect(nats_server.url, "test")
    async with running(settings) as (server, _loops):
        trees = await _begin(server.address, forge)
        slow = await bus.consumer(subjects.LINEAGE, "verifier", [subjects.lineage("*", "leaf")])
        for ordinal in range(3):
            spec = forge.spec(ordinal)
            for item in [forge.opened(spec), *forge.life(spec)]:
                await bus.publish_bytes(item.subject, item.data, f"m{item.sequence}")
            await _closed(trees, spec.tree_id)
        await _until(bus, lambda state: state.last_seq >= 3 * 10)  # the last is of the outbox
        first, kept = (await _state(bus)).first_seq, (await _state(bus)).messages
        assert first == 1, "the slowest consumer has nothing yet, so nothing may go"
        for delivery in await slow.fetch(6, 5.0):
            await delivery.ack()
        await _until(bus, lambda state: state.messages <= kept // 2)
        assert (await _state(bus)).messages >= 2
    await bus.close()


async def _until(bus: Bus, holds: Callable[[api.StreamState], bool]) -> None:
    end = asyncio.get_running_loop().time() + 10
    while not holds(state := await _state(bus)):
        assert asyncio.get_running_loop().time() < end, state
        await asyncio.sleep(0.05)


async def _state(bus: Bus) -> api.StreamState:
    return (await bus._js.stream_info(subjects.LINEAGE)).state


class AnsweringLog:
    """A broker whose answers a test sets."""

    def __init__(self) -> None:
        self.made, self.floors, self.purged = "monday", {"treestore": 10}, list[str]()
        self.held = 0

    async def state(self, stream: str) -> StreamState:
        return StreamState(self.made, self.held)

    async def ack_floors(self, stream: str) -> dict[str, int]:
        return self.floors

    async def purge_below(self, stream: str, sequence: int) -> None:
        self.purged.append(stream)


async def test_a_log_that_was_lost_is_noticed_whatever_its_numbers_say(world: World) -> None:
    """In a young run, the new log has passed the old one's numbers before the first check."""
    log, context = AnsweringLog(), Context(world.database, world.settings, world.now)
    keeper = Maintenance(context, log, Outbox(world.database, log))  # type: ignore[arg-type]
    assert not await keeper.check_log() and not await keeper.check_log()
    log.floors = {"treestore": 12}
    assert not await keeper.check_log()
    log.made, log.floors = "tuesday", {"treestore": 15}
    assert await keeper.check_log() and not await keeper.check_log()
    log.floors = {"treestore": 3}  # the same log, behind: its files were set back
    assert await keeper.check_log()


async def test_nothing_is_purged_that_no_consumer_had(world: World) -> None:
    log = AnsweringLog()
    outbox = Outbox(world.database, log)  # type: ignore[arg-type]
    outbox.published = {"lineage": 10**6, "train": 10**6}
    log.floors = {}  # the broker was wiped: its streams are there again, the consumers not yet
    await Maintenance(Context(world.database, world.settings, world.now), log, outbox).purge()
    assert log.purged == ["TRAIN"]


async def test_a_stream_that_is_half_full_is_purged_without_a_margin(world: World) -> None:
    log = AnsweringLog()
    outbox = Outbox(world.database, log)  # type: ignore[arg-type]
    log.floors = {"treestore": world.settings.purge_margin - 1}
    keeper = Maintenance(Context(world.database, world.settings, world.now), log, outbox)
    await keeper.purge()
    assert not log.purged
    log.held = subjects.most_bytes(subjects.LINEAGE) // 2 + 1
    await keeper.purge()
    assert log.purged == ["LINEAGE", "DEAD"]


async def test_what_is_left_of_a_run_that_is_over_leaves_the_queue(
    nats_server, tmp_path: Path, eventually
) -> None:
    done, going = Forge("done-00000001"), Forge("going-00000002")
    settings = Settings(
        nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "state", purge_s=0.1
    )
    bus = await Bus.connect(nats_server.url, "test")
    async with running(settings) as (server, _loops):
        channel = rpc.channel(server.address)
        runs = RunStoreServiceStub(channel)
        # one for both: a later one fences off what was opened before it and is not read yet
        epoch = (await rpc.call(runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest())).epoch
        for number, forge in enumerate((done, going)):
            put = rs.PutRunRequest(run=forge.run(), request_id=f"r{number}", gateway_epoch=epoch)
            await rpc.call(runs.PutRun, put)
            opened = forge.opened(forge.spec(), epoch=epoch)
            await bus.publish_bytes(opened.subject, opened.data, f"{forge.run_id}-opened")
            await bus.consumer(
                subjects.GROWTH,
                subjects.growth_durable(forge.run_id),
                [subjects.growth(forge.run_id)],
            )

        async def queued() -> list[str]:
            return sorted(await bus.subjects_of(subjects.GROWTH))

        both = sorted(subjects.growth(f.run_id) for f in (done, going))

        async def holds(expected: list[str]) -> bool:
            return await queued() == expected

        await eventually(lambda: holds(both))
        over = rs.MoveRunRequest(
            run_id=done.run_id,
            from_state=rs.RUN_STATE_TRAINING,
            to_state=rs.RUN_STATE_CANCELLED,
            gateway_epoch=epoch,
        )
        await rpc.call(runs.MoveRun, over)
        await eventually(lambda: holds([subjects.growth(going.run_id)]))

        async def consumers() -> bool:
            return list(await bus.ack_floors(subjects.GROWTH)) == [
                subjects.growth_durable(going.run_id)
            ]

        await eventually(consumers)
    await bus.close()
