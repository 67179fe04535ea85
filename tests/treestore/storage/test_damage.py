"""Damaged files: noticed after an end without closing, never written to again, with a remedy."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.storage.faults import StoreDamaged
from services.treestore.storage.integrity import QuickCheck
from tests.treestore.forge import World

_PAGE = 4096
_OF_TREES = (2, 5, 10, 13)  # first bytes of the pages that tables and indices are made of


@pytest.fixture(scope="module")
def left(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield the file of a store whose process was killed, with its log and its lock beside it."""
    folder = tmp_path_factory.mktemp("killed")
    shutil.copy(sqlite_template, folder / "store.sqlite")
    world = World(Database(f"sqlite:///{folder / 'store.sqlite'}").open()).start()
    for ordinal in range(40):
        world.live(world.forge.spec(ordinal), width=4)
    world.database.transact(lambda c: None)
    with sqlite3.connect(folder / "store.sqlite") as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = tmp_path_factory.mktemp("left")
    for file in folder.iterdir():
        shutil.copy(file, copy)
    world.database.close()
    return copy / "store.sqlite"


@pytest.fixture
def path(left: Path, tmp_path: Path) -> Path:
    """Return a copy that the test may damage."""
    for file in left.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / "store.sqlite"


def _zero(path: Path, number: int) -> None:
    with path.open("r+b") as file:
        file.seek(number * _PAGE)
        file.write(bytes(_PAGE))


def _middle(path: Path) -> int:
    """Return a page of segments in the middle of the file."""
    data = path.read_bytes()
    pages = [n for n in range(1, len(data) // _PAGE) if data[n * _PAGE] in _OF_TREES]
    return pages[len(pages) // 2]


async def _until_damaged(database: Database) -> StoreDamaged:
    with pytest.raises(StoreDamaged) as raised:
        await asyncio.wait_for(database.check(), 20)
    return raised.value


async def _goes_on(database: Database) -> None:
    """Wait for the end of a check that finds nothing and waits until it is cancelled."""
    task = asyncio.ensure_future(database.check())
    async with asyncio.timeout(20):
        while database.unchecked is not None and not task.done():
            await asyncio.sleep(0.01)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_every_zeroed_page_of_a_table_or_an_index_is_found(path: Path) -> None:
    data = path.read_bytes()
    pages = [n for n in range(1, len(data) // _PAGE) if data[n * _PAGE] in _OF_TREES]
    assert QuickCheck(path).run() == "" and len(pages) > 40
    for number in pages:
        _zero(path, number)
        assert QuickCheck(path).run(), f"page {number} is zeroed"
        path.write_bytes(data)


async def test_a_store_that_was_not_closed_is_checked_and_goes_on(path: Path) -> None:
    world = World(Database(f"sqlite:///{path}").open())
    assert world.database.unchecked
    await _goes_on(world.database)
    assert len(world.rows(schema.trees)) == 40
    world.database.close()
    reopened = Database(f"sqlite:///{path}").open()
    assert reopened.unchecked is None, "it was closed, and checked before"
    reopened.close()


async def test_a_store_is_checked_until_a_check_went_through(path: Path) -> None:
    Database(f"sqlite:///{path}").open().close()
    reopened = Database(f"sqlite:///{path}").open()
    assert reopened.unchecked, "the one before it ended well, and had not looked at all of the file"
    await _goes_on(reopened)
    reopened.close()
    path.with_name("store.sqlite.lock").unlink()
    copied = Database(f"sqlite:///{path}").open()
    assert copied.unchecked, "a file that was put here says nothing of how its process ended"
    copied.close()


async def test_damage_stops_all_writing_and_is_looked_at_first_by_the_next_start(
    path: Path, left: Path
) -> None:
    _zero(path, _middle(path))
    opened = Database(f"sqlite:///{path}").open()
    error = await _until_damaged(opened)
    assert f"the store {path} is damaged" in str(error) and "--set model=" in str(error)
    with pytest.raises(StoreDamaged):
        await opened.write(lambda c: None)
    opened.close()
    before = path.read_bytes()
    with pytest.raises(StoreDamaged, match="is damaged"):
        Database(f"sqlite:///{path}").open()
    assert path.read_bytes() == before and not path.with_name("store.sqlite-wal").read_bytes(), (
        "it wrote nothing"
    )
    shutil.copy(left, path)
    mended = Database(f"sqlite:///{path}").open()
    await _goes_on(mended)
    mended.close()


async def test_damage_that_work_meets_ends_the_store_too(path: Path) -> None:
    data = path.read_bytes()
    opened = Database(f"sqlite:///{path}").open()
    waiting = asyncio.ensure_future(opened.damaged())
    for number in range(1, len(data) // _PAGE):
        if data[number * _PAGE] in _OF_TREES:
            _zero(path, number)
    with pytest.raises(StoreDamaged):
        await opened.read(
            lambda c: [list(c.execute(table.select())) for table in schema.metadata.sorted_tables]
        )
    with pytest.raises(StoreDamaged):
        await asyncio.wait_for(waiting, 10)
    opened.close()


def test_a_check_that_is_stopped_says_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.treestore.storage.integrity._STEPS", 1)
    check = QuickCheck(path)
    assert check.run() == ""
    check.stop()
    assert check.run() is None


def test_the_process_ends_with_what_to_do(path: Path, nats_server) -> None:
    _zero(path, _middle(path))
    settings = {
        "BANYAN_NATS": nats_server.url,
        "BANYAN_LISTEN": "127.0.0.1:0",
        "BANYAN_STATE": str(path.parent),
    }
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-m", "services.treestore"],
            env={**os.environ, **settings},
            capture_output=True,
            timeout=60,
        )
        last = ended.stderr.decode().strip().splitlines()[-1]
        assert (
            ended.returncode == 2
            and f"the store {path} is damaged" in last
            and "put a copy" in last.lower()
        ), last
        assert "Traceback" not in ended.stderr.decode()
