"""Connections to SQLite: WAL, synchronous=FULL, BEGIN IMMEDIATE for the writer, snapshots for
readers, a small log.
"""

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sqlalchemy import URL, Connection, Engine, create_engine, event

log = logging.getLogger(__name__)
BUSY_S = 10.0  # that SQLite waits for a transaction of another connection
WAL_BYTES = 64 << 20
"""Size of the log beside the file above which the writer waits for all reads, and truncates it.

SQLite truncates it only while no read is under way, which several readers leave to chance.
"""
_URI = "file://"
_CACHE_KB = 65_536  # of the writer, and of all readers together


def writer(path: Path) -> Engine:
    """Return the engine of the only connection that writes."""
    return _engine(URL.create("sqlite", database=str(path)), "BEGIN IMMEDIATE", 1)


def reader(path: Path, connections: int) -> Engine:
    """Return an engine of connections that only read, each on one state of the database during a
    transaction.
    """
    query = {"mode": "ro", "uri": "true"}
    if _is_closed(path):
        query["immutable"] = "1"
    url = URL.create("sqlite", database=path.absolute().as_uri(), query=query)
    return _engine(url, "BEGIN", connections)


def _is_closed(path: Path) -> bool:
    """Return True for a file that no process writes, in a folder where we cannot make the log's
    index, without which SQLite reads a file with a log only if it is told that nothing changes.
    """
    log_file = path.with_name(path.name + "-wal")
    return not os.access(path.parent, os.W_OK) and not log_file.exists()


def file_of(engine: Engine) -> str:
    """Return the path of an engine's file."""
    database = str(engine.url.database)
    return unquote(database.removeprefix(_URI)) if database.startswith(_URI) else database


def trim(engine: Engine, path: Path) -> None:
    """Truncate the log if it is large. Reads continue meanwhile; one that takes longer than
    `BUSY_S` delays it.
    """
    try:
        if path.with_name(path.name + "-wal").stat().st_size <= WAL_BYTES:
            return
    except OSError:
        return  # no log, or it cannot be read now: the next write tries again
    raw = engine.raw_connection()
    try:
        connection: Any = raw.driver_connection
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            log.warning(
                "the log of %s is large, and a long read keeps it from being begun anew", path
            )
    except sqlite3.Error as error:  # the data is safe in the log, and the next write tries again
        log.warning("the log of %s is large, and cannot be begun anew now: %s", path, error)
    finally:
        raw.close()


def _engine(url: URL, begin: str, connections: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        # One thread at a time, but not always the same one.
        connect_args={"check_same_thread": False, "timeout": BUSY_S},
    )

    @event.listens_for(engine, "connect")
    def _prepare(raw: Any, _record: Any) -> None:
        raw.isolation_level = None  # transactions begin in _begin
        raw.execute(f"PRAGMA busy_timeout={round(BUSY_S * 1000)}")
        raw.execute("PRAGMA temp_store=MEMORY")
        raw.execute(f"PRAGMA cache_size=-{_CACHE_KB // connections}")
        if begin != "BEGIN":
            raw.execute("PRAGMA journal_mode=WAL")
            raw.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
