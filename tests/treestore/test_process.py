"""The treestore as a process that is killed without warning, with a broker or a database that is
killed or emptied.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import BanyanError
from banyan.runtime.ports import free_port
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from tests.treestore.forge import Forge

PATIENCE_S = 20.0


class Process:
    """`python -m services.treestore`, on the same port and files each time."""

    def __init__(self, nats: str, folder: Path, database: str = "", **more: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.folder = folder
        folder.mkdir(exist_ok=True)
        settings = {
            "BANYAN_NATS": nats,
            "BANYAN_LISTEN": self.address,
            "BANYAN_STATE": str(folder),
            "BANYAN_ACK_WAIT_S": "1",
        }
        self.environment = {**os.environ, **settings, "BANYAN_DATABASE": database, **more}
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "services.treestore"]
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def kill9(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(10)


class Client:
    """A client whose calls wait for a store that is away."""

    def __init__(self, process: Process, bus: Bus, forge: Forge) -> None:
        channel = rpc.channel(process.address)
        self.bus, self.forge, self.confirmed = (
            bus,
            forge,
            0,
        )  # trees that the store acknowledged
        self.trees, self.runs = TreeStoreServiceStub(channel), RunStoreServiceStub(channel)

    async def ask(self, method: Any, request: Any) -> Any:
        return await rpc.call(method, request, deadline_s=10.0, patience_s=PATIENCE_S)

    async def begin(self) -> None:
        await self.ask(self.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest())
        await self.ask(
            self.runs.PutRun,
            rs.PutRunRequest(run=self.forge.run(), request_id="first", gateway_epoch=1),
        )

    async def claim(self, tree_id: bytes) -> int:
        for _ in range(1000):
            with contextlib.suppress(LookupError):
                return (
                    await self.ask(
                        self.trees.ClaimTree,
                        ts.ClaimTreeRequest(tree_id=tree_id, node_id="node-1", ticket=1),
                    )
                ).epoch
            await asyncio.sleep(0.02)
        raise AssertionError("the tree was never stored")

    async def grow(self, ordinal: int) -> None:
        """Grow one tree in the roles of node and verifier, until the store has everything."""
        spec = self.forge.spec(ordinal, max_claims=100)
        await self._say(self.forge.opened(spec))
        epoch = await self.claim(spec.tree_id)
        items = self.forge.life(spec, width=6, epoch=epoch)
        for item in items:
            await self._say(item)
        ids = [
            g.segment.id
            for i in items
            if "segment" in i.subject
            for g in events_pb2.SegmentsGrown.FromString(i.data).segments
        ]
        wait = ts.AwaitIngestedRequest(
            tree_id=spec.tree_id, epoch=epoch, segment_ids=ids, grown=True, deadline_ms=5000
        )
        while True:
            answer = await self.ask(self.trees.AwaitIngested, wait)
            if answer.grown and not answer.missing:
                return

    async def _say(self, item: Any) -> None:
        await self.bus.publish_bytes(
            item.subject, item.data, f"m{item.sequence}", deadline_s=PATIENCE_S
        )

    async def stats(self) -> dict[str, int]:
        return dict(
            (
                await self.ask(self.trees.GetStats, ts.GetStatsRequest(run_id=self.forge.run_id))
            ).counts
        )


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        if process.process is not None and process.process.poll() is None:
            process.kill9()


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_what_was_acknowledged_survives_kills(
    kind: str, request: pytest.FixtureRequest, nats_server, tmp_path: Path, processes: list[Process]
) -> None:
    database = request.getfixturevalue("own_postgres").address() if kind == "postgresql" else ""
    store = Process(nats_server.url, tmp_path / "state", database)
    processes.append(store)
    bus = await Bus.connect(nats_server.url, "test")
    client = Client(store, bus, Forge())
    await client.begin()
    confirmed = 0
    growing = asyncio.ensure_future(_grow_all(client, count := 16))
    for _ in range(2):
        await _until(lambda least=confirmed + 3: growing.done() or client.confirmed >= least)
        confirmed = client.confirmed
        store.kill9()
        store.start()
        counts = await client.stats()  # the first answer of the next process
        assert counts["segments"] >= confirmed * 8, f"the store said that it had these: {counts}"
    await asyncio.wait_for(growing, 40)
    counts = await _settled(client, count)
    assert (counts["trees_closed"], counts["segments"], counts["scores"]) == (
        count,
        count * 8,
        count * 6,
    )
    assert counts["late"] == counts["refused"] == counts["parked"] == 0
    assert store.stop() == 0
    await bus.close()


async def _grow_all(client: Client, count: int) -> None:
    async def grow_many(first: int) -> None:
        for ordinal in range(first, count, 4):
            await client.grow(ordinal)
            client.confirmed += 1

    await asyncio.gather(*(grow_many(first) for first in range(4)))


async def _until(condition: Any, deadline_s: float = 30.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)


async def _settled(client: Client, count: int) -> dict[str, int]:
    for _ in range(400):
        counts = await client.stats()
        if counts["trees_closed"] == count:
            return counts
        await asyncio.sleep(0.05)
    return counts


@pytest.mark.faults
async def test_a_killed_postgres_loses_nothing(
    nats_server, tmp_path: Path, processes: list[Process], own_postgres
) -> None:
    store = Process(nats_server.url, tmp_path / "state", own_postgres.address())
    processes.append(store)
    bus = await Bus.connect(nats_server.url, "test")
    client = Client(store, bus, Forge())
    await client.begin()
    growing = asyncio.ensure_future(_grow_all(client, count := 12))
    await _until(lambda: client.confirmed >= 3)
    own_postgres.kill9()
    own_postgres.start()
    await asyncio.wait_for(growing, 40)
    counts = await _settled(client, count)
    assert (counts["trees_closed"], counts["segments"], counts["scores"]) == (
        count,
        count * 8,
        count * 6,
    )
    assert store.process is not None and store.process.poll() is None, "the store lived through it"
    await bus.close()


@pytest.mark.faults
async def test_a_killed_broker_loses_nothing(
    nats_server, tmp_path: Path, processes: list[Process]
) -> None:
    store = Process(nats_server.url, tmp_path / "state")
    processes.append(store)
    bus = await Bus.connect(nats_server.url, "test")
    client = Client(store, bus, Forge())
    await client.begin()
    growing = asyncio.ensure_future(_grow_all(client, count := 12))
    for _ in range(2):
        before = client.confirmed
        await _until(lambda before=before: growing.done() or client.confirmed > before)
        nats_server.kill9()
        nats_server.restart()
    await asyncio.wait_for(growing, 40)
    counts = await _settled(client, count)
    assert (counts["trees_closed"], counts["segments"], counts["scores"]) == (
        count,
        count * 8,
        count * 6,
    )
    await bus.close()


@pytest.mark.faults
@pytest.mark.parametrize("running", [True, False])
async def test_an_emptied_broker_gets_its_work_again(
    running: bool, nats_server, tmp_path: Path, processes: list[Process]
) -> None:
    """All of NATS is wiped while the store runs, or while nothing runs: unclaimed trees are queued
    again.
    """
    store = Process(nats_server.url, tmp_path / "state", BANYAN_PURGE_S="0.2")
    processes.append(store)
    bus = await Bus.connect(nats_server.url, "test")
    client = Client(store, bus, Forge())
    await client.begin()
    await client.grow(0)
    spec = client.forge.spec(1)
    await client._say(client.forge.opened(spec))
    await _known(bus)
    await asyncio.sleep(0.5)  # a sweep records the place of the log
    if not running:
        store.stop()
    await bus.close()
    nats_server.kill9()
    shutil.rmtree(nats_server.folder / "jetstream", ignore_errors=True)
    for entry in nats_server.folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
    nats_server.restart()
    if not running:
        store.start()
    bus = await Bus.connect(nats_server.url, "test")
    deadline = asyncio.get_running_loop().time() + 20
    grow: events_pb2.GrowTree | None = None
    while grow is None and asyncio.get_running_loop().time() < deadline:
        with contextlib.suppress(BanyanError):
            consumer = await bus.consumer(subjects.GROWTH, "nodes", [subjects.growth(spec.run_id)])
            for delivery in await consumer.fetch(1, 2.0):
                grow = delivery.decode(events_pb2.GrowTree)
    assert grow is not None and grow.tree_id == spec.tree_id and grow.ticket == 2
    await bus.close()


async def _known(bus: Bus) -> None:
    """Wait until the store queued the second tree, and so has its row."""
    consumer = await bus.consumer(subjects.GROWTH, "nodes", ["growth.*"])
    stored: set[bytes] = set()
    async with asyncio.timeout(20):
        while len(stored) < 2:
            for delivery in await consumer.fetch(2, 1.0):
                stored.add(delivery.decode(events_pb2.GrowTree).tree_id)


async def test_a_second_store_on_the_same_folder_is_refused(
    nats_server, tmp_path: Path, processes: list[Process]
) -> None:
    store = Process(nats_server.url, tmp_path / "state")
    processes.append(store)
    client = Client(store, await Bus.connect(nats_server.url, "test"), Forge())
    await client.begin()
    command = [sys.executable, "-m", "services.treestore"]
    other = subprocess.run(
        command,
        env={**store.environment, "BANYAN_LISTEN": "127.0.0.1:0"},
        capture_output=True,
        timeout=30,
    )
    assert other.returncode == 2
    last = other.stderr.decode().strip().splitlines()[-1]
    assert f"is open in process {store.process.pid}" in last  # type: ignore[union-attr]
    await client.bus.close()


def test_states_have_the_numbers_of_the_contract() -> None:
    from services.treestore.unit_of_work import rows

    assert tuple(
        tree_pb2.TreeState.Value(f"TREE_STATE_{n}")
        for n in ("GROWING", "SCORING", "CLOSED", "CONSUMED", "DROPPED")
    ) == (rows.GROWING, rows.SCORING, rows.CLOSED, rows.CONSUMED, rows.DROPPED)
