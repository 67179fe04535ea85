"""The database: one writer, refusals with reasons, faults that pass."""

import re
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import select, text

from banyan.errors import BanyanError, InvalidInput, Refused, TemporaryError
from services.treestore.storage import migrate, schema, store_metadata
from services.treestore.storage.database import Database, without_password
from services.treestore.storage.integrity import QuickCheck
from services.treestore.storage.settings import Settings
from tests.treestore.forge import World
from tests.treestore.older import older


def test_the_migrations_make_exactly_the_tables_of_the_schema(database: Database) -> None:
    difference = database.query(
        lambda c: compare_metadata(MigrationContext.configure(c), schema.metadata)
    )
    assert difference == []


def test_a_second_writer_is_refused_and_told_who_has_it(
    database: Database, address: str, monkeypatch
) -> None:
    monkeypatch.setattr("services.treestore.storage.database.PATIENCE_S", 0.3)
    with pytest.raises((InvalidInput, TemporaryError), match="open"):
        Database(address).open()
    reader = Database(address, read_only=True).open()
    assert reader.query(lambda c: store_metadata.read_int(c, "x")) == 0
    with pytest.raises(Refused):
        reader.transact(lambda c: store_metadata.rise(c, "x"))
    reader.close()


def test_the_lock_goes_with_its_holder(database: Database, address: str) -> None:
    database.transact(lambda c: store_metadata.rise(c, "x"))
    database.close()
    reopened = Database(address).open()
    assert reopened.query(lambda c: store_metadata.read_int(c, "x")) == 1
    reopened.close()


@pytest.mark.parametrize("writable", [True, False])
def test_a_folder_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, monkeypatch, writable: bool
) -> None:
    """A file with a log needs an index beside it, even to be read, unless nobody changes it."""
    address = Settings(state=tmp_path).database_url
    database = Database(address).open()
    database.transact(lambda c: store_metadata.put(c, "x", 5))
    database.close()
    monkeypatch.setattr("services.treestore.storage.sqlite.os.access", lambda *_: writable)
    reader = Database(address, read_only=True).open()
    assert reader.query(lambda c: store_metadata.read_int(c, "x")) == 5
    assert (tmp_path / "store.sqlite-shm").exists() == writable
    reader.close()


@pytest.mark.parametrize("name", ["a#b", "a?b=c", "100%41", 'a "b"', "a\\b", "a b"])
def test_a_store_lies_in_its_folder_whatever_that_is_called(tmp_path: Path, name: str) -> None:
    state = tmp_path / name
    address = Settings(state=state).database_url
    database = Database(address).open()
    database.transact(lambda c: store_metadata.put(c, "x", 5))
    reader = Database(address, read_only=True).open()
    assert reader.query(lambda c: store_metadata.read_int(c, "x")) == 5
    reader.close()
    database.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    path = state / "store.sqlite"
    assert path.exists() and QuickCheck(path).run() == ""
    path.write_bytes(b"no database at all, whatever it may be called" * 100)
    with pytest.raises(BanyanError, match=re.escape(str(path))):
        Database(address, read_only=True).open()


def test_a_reader_upgrades_the_store_of_an_earlier_version_unless_it_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.sqlite"
    address = f"sqlite:///{path}"
    with older(path, "0008", monkeypatch) as old:
        with monkeypatch.context() as newer:
            newer.setattr(migrate, "HEAD", "0009")
            with pytest.raises(InvalidInput, match=r"0008, older than 0009.*open in process"):
                Database(address, read_only=True).open()
        assert old.query(migrate.version) == "0008"
    reader = Database(address, read_only=True).open()
    assert reader.query(migrate.version) == migrate.HEAD
    with pytest.raises(Refused):
        reader.transact(lambda c: store_metadata.rise(c, "x"))
    reader.close()


def test_a_reader_tells_what_to_do_with_the_store_of_a_later_version(
    database: Database, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "HEAD", "0008")
    with pytest.raises(InvalidInput, match="reads 0008; use the version that wrote it"):
        Database(address, read_only=True).open()


def test_readers_see_all_that_is_committed_and_nothing_else(database: Database) -> None:
    def fail(connection) -> None:
        store_metadata.put(connection, "x", 5)
        raise ValueError("after the write")

    with pytest.raises(ValueError, match="after"):
        database.transact(fail)
    assert database.query(lambda c: store_metadata.read_int(c, "x")) == 0
    database.transact(lambda c: store_metadata.put(c, "x", 6))
    assert database.query(lambda c: store_metadata.read_int(c, "x")) == 6


def test_an_address_that_is_none_is_refused() -> None:
    for address in ("nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:"):
        with pytest.raises(InvalidInput):
            Database(address).open()
    with pytest.raises(InvalidInput, match="nothing ran"):
        Database("sqlite:////tmp/nobody/was/here.sqlite", read_only=True).open()


@pytest.mark.parametrize("address", ["mysql://me:hunter2@host/x", "mysql://me:hunter2@host:port/x"])
def test_a_password_is_in_no_message(address: str) -> None:
    assert without_password(address) == address.replace("hunter2", "***")
    with pytest.raises(InvalidInput) as refused:
        Database(address).open()
    assert "hunter2" not in str(refused.value)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 's.sqlite'}"
    database = Database(address).open()
    database.transact(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    database.close()
    with pytest.raises(InvalidInput, match="9999, newer"):
        Database(address).open()
    assert migrate.HEAD < "9999"


def test_sqlite_is_as_durable_as_promised(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()
    modes = database.transact(
        lambda c: [
            c.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        ]
    )
    assert modes == ["wal", 2]  # 2 is FULL
    database.close()


def test_a_full_disk_is_a_temporary_error_and_nothing_is_lost(tmp_path: Path) -> None:
    world = World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()
    world.open(world.forge.spec())
    big = world.forge.segments(world.forge.root(world.forge.spec()))
    pages = world.database.transact(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar())
    world.database.transact(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count={pages}"))
    leaves = [
        world.forge.child(world.forge.root(world.forge.spec()), n, length=500) for n in range(50)
    ]
    with pytest.raises(TemporaryError) as full:
        world.ingest(big, world.forge.segments(*leaves))
    assert full.value.reason == "STORE_FULL" and "free space" in str(full.value)
    assert not world.rows(schema.segments)
    world.database.transact(lambda c: c.exec_driver_sql("PRAGMA max_page_count=1000000"))
    world.ingest(big, world.forge.segments(*leaves))
    assert len(world.rows(schema.segments)) == 51
    world.database.close()


def test_a_lost_connection_to_postgres_is_mended(postgres, postgres_template: str) -> None:
    import psycopg

    address = postgres.fresh(postgres_template)
    world = World(Database(address).open()).start()
    world.live(world.forge.spec())
    name = address.split("/")[3].split("?")[0]
    with psycopg.connect(postgres.address(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
    world.live(world.forge.spec(1))
    assert len(world.rows(schema.trees)) == 2
    world.database.close()


def test_postgres_waits_for_nothing_for_ever(postgres, postgres_template: str) -> None:
    database = Database(postgres.fresh(postgres_template)).open()
    for setting in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        assert database.transact(
            lambda c, s=setting: c.exec_driver_sql(f"SHOW {s}").scalar()
        ) not in ("0", None)
    database.close()


def test_a_store_that_was_copied_while_it_ran_is_whole(tmp_path: Path) -> None:
    world = World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()
    world.live(world.forge.spec())
    reader = Database(f"sqlite:///{tmp_path / 's.sqlite'}", read_only=True).open()
    assert reader.query(lambda c: c.exec_driver_sql("PRAGMA integrity_check").scalar()) == "ok"
    reader.close()
    world.database.close()
    with sqlite3.connect(tmp_path / "s.sqlite") as raw:
        assert raw.execute("SELECT count(*) FROM segments").fetchone() == (4,)


def test_a_store_of_an_older_version_is_brought_up_to_date(tmp_path: Path, monkeypatch) -> None:
    """It is of version 0002, with a dead letter in it: stored rows stay, and the same numbers may
    come again.
    """
    old = "INSERT INTO dead (service, stream, sequence, letter) VALUES ('s', 'LINEAGE', 7, x'')"
    with older(tmp_path / "s.sqlite", "0002", monkeypatch) as database:
        database.transact(lambda c: c.exec_driver_sql(old))
    database = Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()
    assert database.query(migrate.version) == migrate.HEAD
    new = old.replace("letter)", "letter, digest)").replace("x'')", "x'', x'01')")
    database.transact(lambda c: c.exec_driver_sql(new))
    assert len(database.query(lambda c: list(c.execute(select(schema.dead))))) == 2
    database.close()


_OLD_TREE = (
    "INSERT INTO trees"
    " (tree_id, run_id, group_id, tree_index, row_digest, spec, state, segments, grown_node)"
    " VALUES (X'{0:064x}', 'r', 'g', {0}, x'', x'', 2, 3, 'node-1')"
)


def test_trees_that_were_grown_before_they_were_counted_count_too(
    tmp_path: Path, monkeypatch
) -> None:
    with older(tmp_path / "s.sqlite", "0007", monkeypatch) as database:
        for index in range(2):
            database.transact(lambda c, i=index: c.exec_driver_sql(_OLD_TREE.format(i)))
    database = Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()
    assert database.query(lambda c: [tuple(row) for row in c.execute(select(schema.grown))]) == [
        ("r", "node-1", 2, 0)  # nobody knows when
    ]
    database.close()
