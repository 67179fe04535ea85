"""The database: one writer on one thread, one reader beside it, and nobody else (PROTOCOL 2).

SQLite: WAL, synchronous=FULL, BEGIN IMMEDIATE, a lock file. PostgreSQL: an advisory lock, and the timeouts whose defaults
are none. `work` functions get a connection in a transaction and may be run again after a lost connection, so they must
not change anything but rows.
"""

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from banyan.errors import InvalidInput, Refused, TemporaryError
from services.treestore import migrate
from services.treestore.filelock import FileLock

T = TypeVar("T")
Work = Callable[[Connection], T]

PATIENCE_S = 10.0
_DAMAGED = ("file is not a database", "database disk image is malformed")
_ADVISORY_KEY = 0x62616E79616E  # "banyan"
_TRANSIENT = ("08", "40001", "40P01", "55P03", "57P", "53")  # SQLSTATE classes that pass by themselves
_PG_OPTIONS = "-c lock_timeout=5000 -c statement_timeout=60000 -c idle_in_transaction_session_timeout=60000"


class Database:
    """Opens the database, brings its schema up to date, and runs transactions."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        try:
            self.url = _with_driver(make_url(url))
        except (ArgumentError, ValueError) as error:  # a port that is no number
            raise InvalidInput(f"BANYAN_DATABASE={without_password(url)!r} is not a database address: {error}") from None
        self.read_only = read_only
        self._lock: FileLock | None = None
        self._writer: Engine | None = None
        self._reader: Engine | None = None
        self._write_thread = ThreadPoolExecutor(1, "store-write")
        self._read_thread = ThreadPoolExecutor(1, "store-read")

    def open(self) -> "Database":
        """Takes the lock and migrates. Raises InvalidInput if another process has it or the schema is not ours."""
        if self.url.get_backend_name() == "sqlite":
            self._open_sqlite()
        else:
            self._writer = None if self.read_only else _postgres(self.url, exclusive=True)
            self._reader = _postgres(self.url, exclusive=False)
        if self._writer is not None:
            self.transact(migrate.upgrade, patience_s=PATIENCE_S)
        self.query(migrate.check)
        return self

    def _open_sqlite(self) -> None:
        path = Path(self.url.database or "")
        if not self.url.database or self.url.database == ":memory:":
            raise InvalidInput(f"BANYAN_DATABASE={self.url} must name a file; memory is no store")
        if self.read_only:
            if not path.exists():
                raise InvalidInput(f"there is no store at {path}; nothing ran in this state folder yet")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path.with_name(path.name + ".lock"))
            self._writer = _sqlite(str(path), "BEGIN IMMEDIATE")
            self.transact(lambda c: None)  # makes the file before the reader looks for it
        self._reader = _sqlite(f"file:{path.absolute()}?mode=ro&uri=true", "BEGIN")

    def close(self) -> None:
        """Finishes the transactions under way and lets go of the lock."""
        self._read_thread.shutdown()
        self._write_thread.shutdown()
        for engine in (self._reader, self._writer):
            if engine is not None:
                engine.dispose()
        if self._lock is not None:
            self._lock.release()

    async def write(self, work: Work[T]) -> T:
        """Runs `work` in a write transaction on the writer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._write_thread, self.transact, work)

    async def read(self, work: Work[T]) -> T:
        """Runs `work` in a read transaction on the reader's thread; sees all that is committed."""
        return await asyncio.get_running_loop().run_in_executor(self._read_thread, self.query, work)

    def transact(self, work: Work[T], patience_s: float = PATIENCE_S) -> T:
        """`write`, on the caller's thread."""
        if self._writer is None:
            raise Refused("this treestore only reads; write to the one that runs", "READ_ONLY")
        return _attempt(self._writer, work, patience_s)

    def query(self, work: Work[T]) -> T:
        """`read`, on the caller's thread."""
        assert self._reader is not None, "open() comes first"
        return _attempt(self._reader, work, PATIENCE_S)


def without_password(url: str) -> str:
    """A database's address as it may stand in logs and messages."""
    return re.sub(r"(://[^:/@]*):[^/]*@", r"\1:***@", url)


def _attempt(engine: Engine, work: Work[T], patience_s: float) -> T:
    """One transaction; again after what passes by itself, until `patience_s` is over."""
    end = time.monotonic() + patience_s
    while True:
        try:
            with engine.begin() as connection:
                return work(connection)
        except sqlite3.DatabaseError as error:  # as the connection was made
            _refuse_damaged(engine, error)
            raise
        except DBAPIError as error:
            _refuse_damaged(engine, error.orig)
            if not _transient(error) or time.monotonic() > end:
                raise _meaning(error) from error
        except TemporaryError as error:
            if error.reason != "STORE_LOCKED" or time.monotonic() > end:
                raise
        time.sleep(0.1)


def _refuse_damaged(engine: Engine, error: object) -> None:
    """A file of something else, or a torn one. Raises InvalidInput."""
    if isinstance(error, sqlite3.DatabaseError) and str(error) in _DAMAGED:
        file = str(engine.url.database).removeprefix("file:").partition("?")[0]
        raise InvalidInput(
            f"{file} is no store that can be read: {error}; put a copy of it back, or name another folder with --state"
        ) from None


def _transient(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None) or ""
    lost = (
        type(error.orig).__module__.startswith("psycopg") and type(error.orig).__name__ == "OperationalError" and not state
    )
    return error.connection_invalidated or lost or state.startswith(_TRANSIENT)


def _meaning(error: DBAPIError) -> Exception:
    text = str(error.orig).strip()
    if "disk is full" in text or "No space left" in text or "disk I/O error" in text:
        return TemporaryError(
            f"the store cannot write: {text}; free space on its disk, it goes on by itself", reason="STORE_FULL"
        )
    if "unable to open database file" in text or "readonly database" in text:
        return TemporaryError(
            f"the store cannot write its file: {text}; check the folder's owner and rights", reason="STORE_UNAVAILABLE"
        )
    if _transient(error):
        return TemporaryError(f"the database does not answer: {text}", reason="STORE_UNAVAILABLE")
    return error


def _with_driver(url: URL) -> URL:
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InvalidInput(f"BANYAN_DATABASE={url} is neither sqlite nor postgresql")
    return url


def _sqlite(path: str, begin: str) -> Engine:
    # One connection per engine, used by one thread at a time; made in another thread than it is used in.
    engine = create_engine(
        f"sqlite:///{path}", pool_size=1, max_overflow=0, connect_args={"check_same_thread": False, "timeout": 10}
    )

    @event.listens_for(engine, "connect")
    def _prepare(raw: Any, _record: Any) -> None:
        raw.isolation_level = None  # transactions begin where we say so
        raw.execute("PRAGMA busy_timeout=10000")
        raw.execute("PRAGMA temp_store=MEMORY")
        raw.execute("PRAGMA cache_size=-65536")
        if begin != "BEGIN":
            raw.execute("PRAGMA journal_mode=WAL")
            raw.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _postgres(url: URL, *, exclusive: bool) -> Engine:
    engine = create_engine(url, pool_size=1, max_overflow=0, connect_args={"options": _PG_OPTIONS, "connect_timeout": 5})
    if exclusive:

        @event.listens_for(engine, "connect")
        def _lock(raw: Any, _record: Any) -> None:
            with raw.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", (_ADVISORY_KEY,))
                held = cursor.fetchone()[0]
            raw.commit()
            if not held:
                raw.close()
                message = f"another treestore has the database {url.database} open; stop it first, one store has one writer"
                raise TemporaryError(message, reason="STORE_LOCKED")

    return engine
