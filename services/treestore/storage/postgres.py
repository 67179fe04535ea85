"""Connections to PostgreSQL: every wait has a limit, a peer whose machine is gone is noticed, one
writer at a time.
"""

from typing import Any

from sqlalchemy import URL, Engine, create_engine, event

from banyan.errors import TemporaryError
from banyan.reasons import Reason

_ADVISORY_KEY = 0x62616E79616E  # "banyan"
_CONNECT_S = 5

LIMITS = {
    "lock_timeout": 5_000,
    "statement_timeout": 60_000,
    "idle_in_transaction_session_timeout": 60_000,
}
"""Limits of a session in milliseconds; by default the server waits without end."""

KEEPALIVE = {"idle": 10, "interval": 5, "count": 3}
"""Seconds until a quiet connection is probed and between probes, and failed probes that end it.

A machine that loses power closes no connection. By default Linux probes after two hours, and for so
long the server would keep the advisory lock of a store that is gone, and refuse the next one. With
these values both sides notice it within `_silent_ms`.
"""


def engine(url: URL, *, exclusive: bool, connections: int = 1) -> Engine:
    """Return an engine of a number of connections: with `exclusive` the only one that writes, else
    ones that only read.

    All statements of a read see one state of the database, as SQLite's do.
    """
    result = create_engine(url, pool_size=connections, max_overflow=0, connect_args=arguments(url))

    @event.listens_for(result, "connect")
    def _prepare(raw: Any, _record: Any) -> None:
        if exclusive:
            _lock(raw, str(url.database))
        else:
            from psycopg import IsolationLevel

            raw.isolation_level, raw.read_only = IsolationLevel.REPEATABLE_READ, True

    return result


def arguments(url: URL) -> dict[str, Any]:
    """Return the arguments of a connection; those in the address take precedence."""
    client = {"connect_timeout": _CONNECT_S, "keepalives": 1, "tcp_user_timeout": _silent_ms()}
    client |= {f"keepalives_{name}": value for name, value in KEEPALIVE.items()}
    server = LIMITS | {f"tcp_keepalives_{name}": value for name, value in KEEPALIVE.items()}
    server |= {"tcp_user_timeout": _silent_ms()}
    own = url.query.get("options", "")
    options = " ".join(f"-c {name}={value}" for name, value in server.items())
    if not isinstance(own, str):
        own = " ".join(own)
    return {name: value for name, value in client.items() if name not in url.query} | {
        "options": f"{options} {own}".strip()
    }


def _silent_ms() -> int:
    """Return the milliseconds after which a connection is closed whose other side answers nothing,
    quiet or in use.
    """
    return 1000 * (KEEPALIVE["idle"] + KEEPALIVE["interval"] * KEEPALIVE["count"])


def _lock(raw: Any, database: str) -> None:
    with raw.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", (_ADVISORY_KEY,))
        locked = cursor.fetchone()[0]
    raw.commit()
    if not locked:
        raw.close()
        raise TemporaryError(
            f"another treestore has the database {database} open; stop it first,"
            " one store has one writer",
            reason=Reason.STORE_LOCKED,
        )
