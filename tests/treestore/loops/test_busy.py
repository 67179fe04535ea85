"""A database that is busy or away for a while: nothing is dropped, nothing is acknowledged, no loop
ends.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import insert

from banyan.errors import TemporaryError
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from services.treestore.ingest.item import Item
from services.treestore.loops import maintenance as keeping
from services.treestore.loops.dead_letters import DeadLetters
from services.treestore.loops.ingester import Ingester
from services.treestore.loops.maintenance import Maintenance
from services.treestore.loops.outbox import Outbox
from services.treestore.storage import schema, sqlite, store_metadata
from services.treestore.unit_of_work.context import Context
from tests.treestore.client import served
from tests.treestore.forge import World
from tests.treestore.loops.locks import limit_statements, release
from tests.treestore.loops.test_consumer import Silent, Told
from tests.treestore.loops.test_log import AnsweringLog
from tests.treestore.loops.test_outbox import Log

Release = Callable[[], None]


def _context(world: World) -> Context:
    return Context(world.database, world.settings, world.now)


async def test_messages_wait_for_a_busy_database(busy: tuple[World, Release]) -> None:
    world, release = busy
    deliveries = [Told(world.forge.opened(world.forge.spec(n))) for n in range(3)]
    ingester = Ingester(_context(world), Silent())
    assert not await ingester.store(deliveries)
    assert not any(t.acked for t in deliveries)
    release()
    assert await ingester.store(deliveries)
    assert all(t.acked for t in deliveries)
    assert len(world.rows(schema.trees)) == 3 and not world.rows(schema.dead)


async def test_dead_letters_wait_for_a_busy_database(busy: tuple[World, Release]) -> None:
    world, release = busy
    letter = events_pb2.DeadLetter(stream="LINEAGE", service="verifier", sequence=5, reason="why")
    deliveries = [Told(Item("dead.LINEAGE", letter.SerializeToString(), 1))]
    letters = DeadLetters(_context(world), Silent())
    assert not await letters.store(deliveries)
    assert not deliveries[0].acked
    release()
    assert await letters.store(deliveries)
    assert deliveries[0].acked and world.one(schema.dead).service == "verifier"


async def test_the_outbox_waits_for_a_busy_database(
    busy: tuple[World, Release], eventually: Any
) -> None:
    """Events that were published stay until they can be removed, and do not go out again."""
    world, release = busy
    release()
    row = {"subject": "train.r.batch", "msg_id": "1", "payload": b"p", "traceparent": ""}
    world.database.transact(lambda c: c.execute(insert(schema.outbox), [row]))
    log = Log()
    write, failed = world.database.write, asyncio.Event()

    async def noted(work: Any) -> Any:
        try:
            return await write(work)
        except TemporaryError:
            failed.set()
            raise

    world.database.write = noted  # type: ignore[method-assign]
    with _held(world):
        task = asyncio.ensure_future(Outbox(world.database, log).run())
        await asyncio.wait_for(failed.wait(), 10)
    await eventually(lambda: not world.rows(schema.outbox), 30.0)
    assert len(log.said) == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.contextmanager
def _held(world: World) -> Iterator[None]:
    url = world.database.url
    if url.get_backend_name() == "sqlite":
        other: Any = sqlite3.connect(str(url.database), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
    else:
        other = psycopg.connect(
            url.set(drivername="postgresql").render_as_string(hide_password=False)
        )
        other.execute("LOCK TABLE outbox IN EXCLUSIVE MODE")
        limit_statements(world, 50)
    yield
    release(world, other)
    other.close()


async def test_deadlines_and_the_heartbeat_wait_for_a_busy_database(
    busy: tuple[World, Release],
) -> None:
    world, release = busy
    world.now.ms += 10_000_000
    keeper = Maintenance(_context(world), None, Outbox(world.database, Log()))
    with pytest.raises(TemporaryError):
        await keeper.reconcile()
    release()
    await keeper.reconcile()


async def test_the_looks_at_deadlines_go_on_after_a_busy_database(
    busy: tuple[World, Release], eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world, release = busy
    world.settings = replace(world.settings, tick_ms=10)
    keeper = Maintenance(_context(world), None, Outbox(world.database, Log()))
    async with _going(keeper.watch()) as watching:
        await eventually(
            lambda: watching.done() or caplog.text.count("cannot look at deadlines") >= 2
        )
        assert not watching.done()
        release()
        await eventually(lambda: _beaten(world) == world.now())
        assert not watching.done()


def _beaten(world: World) -> int:
    return world.database.query(lambda c: store_metadata.read_int(c, "alive_ms"))


async def test_the_looks_at_the_log_go_on_after_a_busy_database(
    busy: tuple[World, Release],
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG, "services.treestore.loops.maintenance")
    monkeypatch.setattr(keeping, "_CHECK_S", 0.01)
    world, release = busy
    keeper = Maintenance(_context(world), AnsweringLog(), Outbox(world.database, Log()))
    async with _going(keeper.sweep()) as sweeping:
        await eventually(
            lambda: sweeping.done() or caplog.text.count("cannot look after the log now") >= 2
        )
        assert not sweeping.done()
        release()
        await eventually(lambda: _born(world) == "monday")
        assert not sweeping.done()


def _born(world: World) -> str:
    return world.database.query(lambda c: store_metadata.read_text(c, "lineage_born"))


@contextlib.asynccontextmanager
async def _going(loop: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(loop)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_running_store_lives_through_a_locked_file(
    nats_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All loops at once, and the calls: messages that came meanwhile are stored when the file is
    free, none is dropped.
    """
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    monkeypatch.setattr(keeping, "_BEAT_MS", 0)  # each turn writes
    async with served(nats_server.url, tmp_path / "state", ack_wait_s=1.0) as store:
        other = sqlite3.connect(tmp_path / "state" / "store.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await store.publish(store.forge.opened(store.forge.spec(1)))
        letter = events_pb2.DeadLetter(
            stream="LINEAGE", service="verifier", sequence=5, reason="why"
        )
        await store.bus.publish_bytes("dead.LINEAGE", letter.SerializeToString(), "letter")
        for trouble in (
            "cannot store 1 messages",
            "cannot store 1 dead letters",
            "cannot look at deadlines",
        ):
            await eventually(lambda trouble=trouble: trouble in caplog.text, 20.0)
        with pytest.raises(TemporaryError, match="locked"):
            await rpc.call(
                store.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="late")
            )
        other.execute("ROLLBACK")
        other.close()
        await store.grow(store.forge.spec(0))
        assert await store.claim(store.forge.spec(1).tree_id) == 1
        assert not (await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters, (
            "the letter itself comes again later"
        )
        assert store.loops is not None and not store.loops.done()
