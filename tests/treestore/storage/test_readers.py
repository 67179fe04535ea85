"""Reads run beside each other, each on one state of the database, and none prevents SQLite's log
from being truncated.
"""

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, insert, select

from services.treestore.storage import database as databases
from services.treestore.storage import schema
from services.treestore.storage.database import Database

_COUNT = select(func.count()).select_from(schema.dead)


def _letter(sequence: int, size: int = 0) -> dict[str, object]:
    return {"service": "s", "stream": "S", "sequence": sequence, "letter": bytes(size)}


def _put(database: Database, sequence: int, size: int = 0) -> None:
    database.transact(lambda c: c.execute(insert(schema.dead), [_letter(sequence, size)]))


async def test_a_long_read_holds_up_no_other(database: Database) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(connection: Connection) -> tuple[int, int]:
        before = connection.scalar(_COUNT) or 0
        begun.set()
        assert go.wait(10), "the other reads waited for this one"
        return before, connection.scalar(_COUNT) or 0

    long = asyncio.create_task(database.read(slow))
    await asyncio.to_thread(begun.wait, 10)
    await database.write(lambda c: c.execute(insert(schema.dead), [_letter(1)]))
    assert await database.read(lambda c: c.scalar(_COUNT)) == 1, (
        "a read sees all that is committed before it"
    )
    assert not long.done()
    go.set()
    assert await long == (0, 0), "and nothing of what is committed during it"


async def test_reads_go_on_while_all_but_one_are_long(database: Database) -> None:
    begun, go = threading.Barrier(databases.READERS, timeout=10), threading.Event()

    def slow(connection: Connection) -> bool:
        connection.scalar(_COUNT)
        begun.wait()
        return go.wait(10)

    long = [asyncio.create_task(database.read(slow)) for _ in range(databases.READERS - 1)]
    await asyncio.to_thread(begun.wait)
    assert await database.read(lambda c: c.scalar(_COUNT)) == 0
    go.set()
    assert all(await asyncio.gather(*long))


def test_readers_that_never_pause_do_not_let_the_log_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots overlap without an end; SQLite alone would never truncate its log."""
    monkeypatch.setattr("services.treestore.storage.sqlite.WAL_BYTES", 1 << 20)
    database = Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()
    begun, ended = [threading.Semaphore(0) for _ in range(2)], threading.Event()

    def keep_reading(me: int) -> None:
        def read(connection: Connection) -> None:
            connection.scalar(_COUNT)
            begun[me].release()
            begun[1 - me].acquire(
                timeout=0.1
            )  # the other's next read is under way before this one ends

        while not ended.is_set():
            database.query(read)

    readers = [threading.Thread(target=keep_reading, args=(me,)) for me in range(2)]
    for reader in readers:
        reader.start()
    log = tmp_path / "s.sqlite-wal"
    largest = 0
    for sequence in range(24):
        _put(database, sequence, 512 << 10)
        largest = max(largest, log.stat().st_size)
    ended.set()
    for reader in readers:
        reader.join(10)
    assert largest < 4 << 20, f"{largest} bytes, of 12 MiB that were written"
    assert database.query(lambda c: c.scalar(_COUNT)) == 24
    database.close()
