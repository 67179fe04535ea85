"""Errors of the database on a message: only faults of its data make a dead letter of it."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError, IntegrityError

from banyan.errors import InvalidInput, TemporaryError
from banyan.v1 import events_pb2
from services.treestore.ingest import dead_letters
from services.treestore.ingest.item import Item
from services.treestore.ingest.transaction import ingest
from services.treestore.loops import ingester as consumer
from services.treestore.loops.dead_letters import DeadLetters
from services.treestore.loops.ingester import Ingester
from services.treestore.storage import database, faults, schema
from services.treestore.storage import postgres as limits
from services.treestore.storage.database import Database
from tests.treestore.forge import World
from tests.treestore.loops.test_busy import _context
from tests.treestore.loops.test_consumer import Silent, Told


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
    # Delivered again. A busy machine may be that late once more: the limit is short.
    for _ in range(20):
        if await ingester.store(deliveries):
            break
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
    busy: tuple[World, Callable[[], None]], monkeypatch
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
