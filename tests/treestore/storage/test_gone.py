"""A store, or a PostgreSQL server, whose machine is gone without closing its connections."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, make_url, text

from services.treestore.storage import database, postgres
from services.treestore.storage.database import Database
from tests.network import Network, network
from tests.treestore.postgres import Postgres, running

QUICK = {"idle": 1, "interval": 1, "count": 1}
HOLDER = """
import sys, time
from services.treestore.storage import postgres
from services.treestore.storage.database import Database
postgres.KEEPALIVE = {keepalive}
Database({address!r}).open()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def distant() -> Iterator[tuple[Network, Postgres]]:
    """Yield a host that reaches a PostgreSQL server here by a wire that can be cut."""
    with network() as wire, running(listen=wire.address) as server:
        yield wire, server


@pytest.fixture(scope="module")
def listening() -> Iterator[Postgres]:
    with running(listen="127.0.0.1") as server:
        yield server


@pytest.mark.parametrize("reads", [False, True], ids=["writer", "reader"])
def test_both_sides_notice_a_peer_that_is_gone(listening: Postgres, reads: bool) -> None:
    opened = Database(listening.by_network(listening.fresh())).open()
    do: Callable[[Callable[[Connection], object]], object] = (
        opened.query if reads else opened.transact
    )
    server = {name: do(lambda c, n=name: c.scalar(text(f"SHOW {n}"))) for name in _SERVER}
    assert server == {name: str(value) for name, value in _SERVER.items()}
    assert do(_client) == (1, 10, 5, 3, 25_000)
    opened.close()


_SERVER = {
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 5,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def _client(connection: Connection) -> tuple[int, ...]:
    """Return the settings of the store's own end of the connection."""
    raw = connection.connection.driver_connection
    assert raw is not None
    with socket.fromfd(raw.fileno(), socket.AF_INET, socket.SOCK_STREAM) as copy:
        on = copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        tcp = (
            socket.TCP_KEEPIDLE,
            socket.TCP_KEEPINTVL,
            socket.TCP_KEEPCNT,
            socket.TCP_USER_TIMEOUT,
        )
        return (on, *(copy.getsockopt(socket.IPPROTO_TCP, name) for name in tcp))


def test_what_the_address_says_goes_before() -> None:
    url = make_url(
        "postgresql+psycopg://u@h/d?tcp_user_timeout=7&keepalives_idle=60"
        "&options=-c statement_timeout%3D9"
    )
    arguments = postgres.arguments(url)
    assert "tcp_user_timeout" not in arguments and "keepalives_idle" not in arguments
    assert arguments["keepalives_count"] == 3
    assert arguments["options"].endswith("-c statement_timeout=9")


def test_the_lock_of_a_store_whose_machine_is_gone_is_free_soon(
    distant: tuple[Network, Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, server = distant
    address = server.by_network(server.fresh())
    code = HOLDER.format(keepalive=QUICK, address=address)
    command = [*wire.inside, sys.executable, "-c", code]
    holder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"open\n"
        wire.cut()
        monkeypatch.setattr(database, "PATIENCE_S", 15.0)
        Database(address).open().close()
    finally:
        holder.kill()
        holder.communicate(timeout=10)
