"""A database that is busy or away for a while: nothing is dropped, nothing is acknowledged, no loop
ends.
"""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import DataError, IntegrityError

from banyan.errors import InvalidInput, TemporaryError
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from services.treestore.ingest import dead_letters
from services.treestore.ingest.item import Item
from services.treestore.ingest.transaction import ingest
from services.treestore.loops import ingester as consumer
from services.treestore.loops import maintenance as keeping
from services.treestore.loops.dead_letters import DeadLetters
from services.treestore.loops.ingester import Ingester
from services.treestore.loops.maintenance import Maintenance
from services.treestore.loops.outbox import Outbox
from services.treestore.storage import database, faults, schema, sqlite, store_metadata
from services.treestore.storage import postgres as limits
from services.treestore.storage.database import Database
from services.treestore.unit_of_work.context import Context
from tests.treestore.client import served
from tests.treestore.forge import World
from tests.treestore.loops.test_consumer import Silent, Told
from tests.treestore.loops.test_log import AnsweringLog
from tests.treestore.loops.test_outbox import Log

Release = Callable[[], None]


@pytest.fixture(params=["sqlite", "postgresql"])
def busy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[World, Release]]:
    """Yield a world whose database is locked by another connection, and its release; the store
    waits 0.05 s instead of 10.
    """
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    monkeypatch.setattr(database, "PATIENCE_S", 0.0)
    if request.param == "sqlite":
        path = tmp_path / "store.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        world = World(Database(f"sqlite:///{path}").open()).start()
        other: Any = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
    else:
        address = request.getfixturevalue("postgres").fresh(
            request.getfixturevalue("postgres_template")
        )
        world = World(Database(address).open()).start()
        other = psycopg.connect(address)
        tables = ", ".join(f'"{table.name}"' for table in schema.metadata.sorted_tables)
        other.execute(f"LOCK TABLE {tables} IN EXCLUSIVE MODE".encode())
        _limit_statements(world, 50)
    yield world, lambda: _release(world, other)
    other.close()
    world.database.close()


def _release(world: World, other: Any) -> None:
    """Unlock the database, and give statements time."""
    other.execute("ROLLBACK")
    if world.database.url.get_backend_name() == "postgresql":
        _limit_statements(world, 0)


def _limit_statements(world: World, limit_ms: int) -> None:
    """Bound the statements of the writer: their time is over before that of a lock, as in a
    database under load.
    """
    for name, value in (("lock_timeout", 10_000), ("statement_timeout", limit_ms)):
        world.database.transact(lambda c, n=name, v=value: c.execute(text(f"SET {n} = {v}")))  # type: ignore[misc]


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
    """Events that were published but not removed are published again, under the same ids."""
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
    assert len(set(log.said)) == 1
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
        _limit_statements(world, 50)
    yield
    _release(world, other)
    other.close()


async def test_deadlines_and_the_heartbeat_wait_for_a_busy_database(
    busy: tuple[World, Release],
) -> None:
    world, release = busy
    world.now.ms += 10_000_000
    keeper = Maintenance(_context(world), None, Outbox(world.database, Log()))  # type: ignore[arg-type]
    with pytest.raises(TemporaryError):
        await keeper.reconcile()
    release()
    await keeper.reconcile()


async def test_the_looks_at_deadlines_go_on_after_a_busy_database(
    busy: tuple[World, Release], eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world, release = busy
    world.settings = replace(world.settings, tick_ms=10)
    keeper = Maintenance(_context(world), None, Outbox(world.database, Log()))  # type: ignore[arg-type]
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
    keeper = Maintenance(_context(world), AnsweringLog(), Outbox(world.database, Log()))  # type: ignore[arg-type]
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


def test_only_faults_of_the_data_do_not_pass(database_of_postgres: Database) -> None:
    away = (
        "57014",
        "25P02",
        "25006",
        "40001",
        "40P01",
        "55P03",
        "53100",
        "08006",
        "57P03",
        "58030",
    )
    for state in (*away, "54000", "XX000", "42501"):
        with pytest.raises(TemporaryError) as raised:
            database_of_postgres.transact(lambda c, s=state: _raise(c, s))  # type: ignore[misc]
        # Every statement would fail so: messages are not tried one by one.
        assert (raised.value.reason == faults.UNAVAILABLE) == (state in away), state
        assert database_of_postgres.transact(lambda c: c.scalar(text("SELECT 1"))) == 1, state
    for state in ("22001", "22003", "22P05", "23505", "23502"):
        with pytest.raises((IntegrityError, DataError)):
            database_of_postgres.transact(lambda c, s=state: _raise(c, s))  # type: ignore[misc]


@pytest.fixture
def database_of_postgres(
    postgres: Any, postgres_shared: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    monkeypatch.setattr(database, "PATIENCE_S", 0.0)
    opened = Database(postgres.emptied(postgres_shared)).open()
    yield opened
    opened.close()


def _raise(connection: Connection, state: str) -> None:
    connection.exec_driver_sql(
        f"DO $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = '{state}'; END $$"
    )


async def test_a_session_that_the_server_ends_amid_a_transaction_buries_nothing(
    postgres: Any, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`idle_in_transaction_session_timeout` (25P03): the store was stopped for a while between two
    statements.
    """
    monkeypatch.setattr(limits, "LIMITS", {"idle_in_transaction_session_timeout": 50})
    monkeypatch.setattr(database, "PATIENCE_S", 0.0)
    world = World(Database(postgres.fresh(postgres_template)).open()).start()
    deliveries = [Told(world.forge.opened(world.forge.spec()))]

    def slow(connection: Connection, *more: Any) -> Any:
        number = connection.scalar(text("SELECT pg_backend_pid()"))
        _await_gone(postgres.address(), number)
        return ingest(connection, *more)

    ingester = Ingester(_context(world), Silent())
    with monkeypatch.context() as slowly:
        slowly.setattr(consumer, "ingest", slow)
        assert not await ingester.store(deliveries)
    assert not deliveries[0].acked
    assert await ingester.store(deliveries)
    assert deliveries[0].acked and not world.rows(schema.dead)
    world.database.close()


def test_a_transaction_whose_session_the_server_ended_is_run_again_at_once(
    postgres: Any, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LIMITS", {"idle_in_transaction_session_timeout": 100})
    monkeypatch.setattr(database, "PATIENCE_S", 30.0)
    opened = Database(postgres.fresh(postgres_template)).open()
    ended: list[Any] = []

    def slow(connection: Connection) -> Any:
        number = connection.scalar(text("SELECT pg_backend_pid()"))
        if not ended:
            ended.append(number)
            _await_gone(postgres.address(), number)
        return connection.scalar(text("SELECT 1"))

    assert opened.transact(slow) == 1 and ended
    opened.close()


def _await_gone(address: str, backend: Any) -> None:
    """Wait until the server has ended a session."""
    with psycopg.connect(address, autocommit=True) as connection:
        for _ in range(2000):
            if not connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s", (backend,)
            ).fetchone():
                return
            connection.execute("SELECT pg_sleep(0.01)")
    raise AssertionError(f"session {backend} is still there")


async def test_our_own_refusal_of_a_message_buries_it_alone(
    busy: tuple[World, Release], monkeypatch
) -> None:
    """This holds for our own errors, too, which are not the database's."""
    world, release = busy
    release()
    deliveries = [Told(world.forge.opened(world.forge.spec(n))) for n in range(3)]

    def picky(connection: Connection, items: Any, *more: Any) -> Any:
        if any(item.sequence == deliveries[1].sequence for item in items):
            raise InvalidInput("not this one")
        return ingest(connection, items, *more)

    monkeypatch.setattr(consumer, "ingest", picky)
    assert await Ingester(_context(world), Silent()).store(deliveries)
    assert len(world.rows(schema.trees)) == 2 and all(t.acked for t in deliveries)
    assert "not this one" in world.one(schema.dead).reason


async def test_a_message_that_the_database_cannot_take_holds_up_no_other(
    postgres: Any, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of the server (54000) is no fault of the data: the message is not dropped, and the
    others are stored.
    """
    monkeypatch.setattr(database, "PATIENCE_S", 0.0)
    world = World(Database(postgres.fresh(postgres_template)).open()).start()
    deliveries = [Told(world.forge.opened(world.forge.spec(n))) for n in range(3)]

    def limited(connection: Connection, items: Any, *more: Any) -> Any:
        if any(item.sequence == deliveries[1].sequence for item in items):
            _raise(connection, "54000")
        return ingest(connection, items, *more)

    monkeypatch.setattr(consumer, "ingest", limited)
    assert not await Ingester(_context(world), Silent()).store(deliveries)
    assert [bool(t.acked) for t in deliveries] == [True, False, True]
    assert len(world.rows(schema.trees)) == 2 and not world.rows(schema.dead)
    world.database.close()


async def test_a_letter_that_no_row_can_hold_stops_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [
        events_pb2.DeadLetter(stream="LINEAGE", service="verifier", sequence=n, reason="why")
        for n in (1, 2)
    ]
    deliveries = [
        Told(Item("dead.LINEAGE", letter.SerializeToString(), letter.sequence))
        for letter in letters
    ]
    store = dead_letters.store

    def picky(connection: Connection, batch: Any, *more: Any) -> None:
        if any(letter.sequence == 1 for letter in batch):
            connection.execute(text("INSERT INTO dead (service) VALUES (NULL)"))
        store(connection, batch, *more)

    monkeypatch.setattr(dead_letters, "store", picky)
    assert await DeadLetters(_context(world), Silent()).store(deliveries)
    assert all(t.acked for t in deliveries) and world.one(schema.dead).sequence == 2


@pytest.mark.parametrize("refused", [False, True])
async def test_a_letter_that_the_database_cannot_take_holds_up_no_other(
    postgres: Any, postgres_template: str, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """At a limit of the server a letter comes again, and after a refusal of ours it is let go; the
    others are kept.
    """
    monkeypatch.setattr(database, "PATIENCE_S", 0.0)
    world = World(Database(postgres.fresh(postgres_template)).open()).start()
    letters = [
        events_pb2.DeadLetter(stream="LINEAGE", service="verifier", sequence=n, reason="why")
        for n in (1, 2, 3)
    ]
    deliveries = [
        Told(Item("dead.LINEAGE", letter.SerializeToString(), letter.sequence))
        for letter in letters
    ]
    store = dead_letters.store

    def limited(connection: Connection, batch: Any, *more: Any) -> None:
        if any(letter.sequence == 2 for letter in batch):
            if refused:
                raise InvalidInput("not this one")
            _raise(connection, "54000")
        store(connection, batch, *more)

    monkeypatch.setattr(dead_letters, "store", limited)
    assert await DeadLetters(_context(world), Silent()).store(deliveries) == refused
    assert [bool(t.acked) for t in deliveries] == [True, refused, True]
    assert sorted(row.sequence for row in world.rows(schema.dead)) == [1, 3]
    world.database.close()


async def test_letters_are_not_tried_alone_while_the_database_is_busy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait as long as all together, and the database would take none."""
    letters = [
        events_pb2.DeadLetter(stream="LINEAGE", service="verifier", sequence=n, reason="why")
        for n in (1, 2)
    ]
    deliveries = [
        Told(Item("dead.LINEAGE", letter.SerializeToString(), letter.sequence))
        for letter in letters
    ]
    tries: list[int] = []

    def busy(connection: Connection, batch: Any, *more: Any) -> None:
        tries.append(len(batch))
        raise TemporaryError("busy", reason=faults.UNAVAILABLE)

    monkeypatch.setattr(dead_letters, "store", busy)
    assert not await DeadLetters(_context(world), Silent()).store(deliveries)
    assert tries == [2] and not any(t.acked for t in deliveries)
