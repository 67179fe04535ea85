"""A busy database."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from services.treestore.storage import database, schema, sqlite
from services.treestore.storage.database import Database
from tests.treestore.forge import World
from tests.treestore.loops.locks import limit_statements, release

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
        limit_statements(world, 50)
    yield world, lambda: release(world, other)
    other.close()
    world.database.close()
