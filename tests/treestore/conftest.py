"""Databases for the treestore's tests: SQLite in a temporary folder, and a real PostgreSQL, the
same tests on both.
"""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.treestore.storage.database import Database
from tests.treestore.client import Store, served
from tests.treestore.forge import World
from tests.treestore.postgres import Postgres, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Yield a server that the test may kill."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """Return the name of a database whose schema is up to date; copying it is faster than
    migrating.
    """
    address = postgres.fresh()
    Database(address).open().close()
    return address.split("/")[3].split("?")[0]


@pytest.fixture(scope="session")
def postgres_shared(postgres: Postgres, postgres_template: str) -> str:
    """Return the address of the database that one test after the other uses."""
    return postgres.fresh(postgres_template)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a database whose schema is up to date."""
    path = tmp_path_factory.mktemp("template") / "store.sqlite"
    Database(f"sqlite:///{path}").open().close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a database without rows."""
    if request.param == "sqlite":
        path = tmp_path / "store.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.emptied(request.getfixturevalue("postgres_shared"))


@pytest.fixture
def database(address: str) -> Iterator[Database]:
    opened = Database(address).open()
    yield opened
    opened.close()


@pytest.fixture
def world(database: Database) -> World:
    return World(database).start()


@pytest.fixture
def make_world(database: Database) -> Callable[..., World]:
    return lambda **more: World(database, **more)


@pytest.fixture
async def store(nats_server: Any, tmp_path: Path) -> AsyncIterator[Store]:
    """Yield a client of a new store in this process, and of the log."""
    async with served(nats_server.url, tmp_path / "state") as client:
        yield client
