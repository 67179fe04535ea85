"""The database: one writer on one thread, a few readers beside it, and no other process.

See docs/protocol.md, Database. SQLite has a lock file (see also `sqlite`); PostgreSQL an advisory
lock, and limits for waits that it would not end by itself (`postgres`). A `work` function gets a
connection in a transaction and may be run again after a lost connection, so it must change nothing
but rows.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from banyan.errors import BanyanError, InvalidInput, Refused, TemporaryError
from banyan.reasons import Reason
from services.treestore.storage import faults, migrate, postgres, sqlite
from services.treestore.storage.faults import StoreDamaged
from services.treestore.storage.file_lock import FileLock
from services.treestore.storage.integrity import QuickCheck
from services.treestore.storage.transaction import Work as Work
from services.treestore.storage.transaction import attempted

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_S = 10.0
_DAMAGED, _UNCHECKED = "damaged", "unchecked"  # messages in the lock file to the next process
READERS = 3  # at once, so that a long read does not hold up the others
Rider = Callable[[Connection], Callable[[], None]]
"""Work at the end of a write transaction, on the writer's thread; what it returns is called after
the commit."""


class Database:
    """A database that brings its schema up to date when it is opened, and runs transactions.

    url: its address
    read_only: nothing is written but the upgrade of an older version's file, which must be closed
    unchecked: a file whose last process ended without closing it; None if there is none
    rider: work that is not worth a transaction of its own, and goes along with every write
    """

    def __init__(self, url: str | URL, *, read_only: bool = False) -> None:
        try:
            self.url = _with_driver(make_url(url))
        except (ArgumentError, ValueError) as error:  # ValueError: a port that is no number
            raise InvalidInput(
                f"BANYAN_DATABASE={without_password(str(url))!r} is not a database address: {error}"
            ) from None
        self.read_only = read_only
        self._lock: FileLock | None = None
        self.unchecked: Path | None = None
        self.rider: Rider | None = None
        self._damage: StoreDamaged | None = None
        self._damaged = asyncio.Event()
        self._writer: Engine | None = None
        self._reader: Engine | None = None
        self._write_thread = ThreadPoolExecutor(1, "store-write")
        self._read_threads = ThreadPoolExecutor(READERS, "store-read")
        self._check_thread = ThreadPoolExecutor(1, "store-check")

    def open(self) -> "Database":
        """Take the lock and migrate.

        Raises InvalidInput if another process has the lock or the schema is not ours. A file that
        was found damaged is checked before anything is written to it.
        """
        with ExitStack() as undo:
            undo.callback(self.close)  # whatever happens, the lock must go
            self._open()
            undo.pop_all()
        return self

    def _open(self) -> None:
        if self.url.get_backend_name() == "sqlite":
            self._open_sqlite()
        else:
            self._writer = None if self.read_only else postgres.engine(self.url, exclusive=True)
            self._reader = postgres.engine(self.url, exclusive=False, connections=READERS)
        if self._writer is not None:
            self.transact(migrate.upgrade)
        elif self.url.get_backend_name() == "sqlite" and self.query(migrate.is_older):
            self._upgrade()
        self.query(migrate.check)

    def _upgrade(self) -> None:
        """Upgrade the file of an older version, which no process writes, before it is only read.

        Raises InvalidInput if a process has it open, or this one may not write it.
        """
        version = self.query(migrate.version)
        try:
            Database(self.url).open().close()
        except (BanyanError, OSError) as error:
            raise InvalidInput(
                f"the store's schema is {version}, older than {migrate.HEAD} of this version, and"
                f" it cannot be upgraded: {error}; stop what runs there, and let its owner call the"
                " command, or copy the folder and name the copy"
            ) from None
        log.info("the store's schema was upgraded from %s to %s", version, migrate.HEAD)

    def _open_sqlite(self) -> None:
        path = Path(self.url.database or "")
        if not self.url.database or self.url.database == ":memory:":
            raise InvalidInput(f"BANYAN_DATABASE={self.url} must name a file; memory is no store")
        if self.read_only:
            if not path.exists():
                raise InvalidInput(
                    f"there is no store at {path}; nothing ran in this state folder yet"
                )
        else:
            self._take(path)
            self._writer = sqlite.writer(path)
            self.transact(lambda c: None)  # creates the file, which the reader needs
        self._reader = sqlite.reader(path, READERS)

    def _take(self, path: Path) -> None:
        """Take the lock of a file; it says how the last process that wrote to the file ended."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(path.name + ".lock")
        exists, was_locked = path.exists(), lock.exists()
        self._lock = FileLock(lock)
        if exists and (self._lock.left or not was_locked):
            self.unchecked = path
        if exists and self._lock.left == _DAMAGED:
            finding = QuickCheck(path).run()
            self._record_check(finding)
            if finding is None:
                raise TemporaryError(
                    f"{path} was damaged, and cannot be read now to see whether it still is;"
                    " look after its disk",
                    reason=faults.UNAVAILABLE,
                )

    def _record_check(self, finding: str | None) -> None:
        """Keep the result of a check, None if there is none. Raises StoreDamaged for a finding."""
        if finding:
            self._damage = faults.damaged(str(self.unchecked), finding)
            raise self._damage
        if finding is not None:
            self.unchecked = None

    async def check(self) -> None:
        """Check a file that the last process left open, beside all work; wait until cancelled.

        Raises StoreDamaged. Until a check is completed, every start begins one.
        """
        if self.unchecked is not None:
            check, began = QuickCheck(self.unchecked), time.monotonic()
            try:
                finding = await asyncio.get_running_loop().run_in_executor(
                    self._check_thread, check.run
                )
            finally:
                check.stop()
            self._record_check(finding)
            result = "could not be checked now" if finding is None else "is whole"
            log.info("the store was not closed; it %s (%.1f s)", result, time.monotonic() - began)
        await asyncio.Event().wait()

    async def damaged(self) -> None:
        """Wait until the file is found damaged; raise StoreDamaged then, as later writes do."""
        await self._damaged.wait()
        assert self._damage is not None
        raise self._damage

    def close(self) -> None:
        """Finish the transactions under way and release the lock."""
        self._check_thread.shutdown()
        self._read_threads.shutdown()
        self._write_thread.shutdown()
        for engine in (self._reader, self._writer):
            if engine is not None:
                engine.dispose()
        if self._lock is not None:
            self._lock.release(self._last_word())

    def _last_word(self) -> str:
        """Return the text in the lock file that tells the next process about the file."""
        was_damaged = self._lock is not None and self._lock.left == _DAMAGED
        if self._damage is not None or (self.unchecked and was_damaged):
            return _DAMAGED
        return _UNCHECKED if self.unchecked else ""

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a write transaction on the writer's thread."""
        return await self._on(self._write_thread, self.transact, work)

    async def read(self, work: Work[T]) -> T:
        """Run `work` on a reader's thread; it sees what was committed before it, nothing later."""
        return await self._on(self._read_threads, self.query, work)

    async def _on(
        self, thread: ThreadPoolExecutor, run: Callable[[Work[T]], T], work: Work[T]
    ) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, run, work)
        except StoreDamaged as error:
            self._damage = self._damage or error
            self._damaged.set()
            raise

    def transact(self, work: Work[T]) -> T:
        """Run `work` as `write` does, on the caller's thread."""
        if self._writer is None:
            raise Refused("this treestore only reads; write to the one that runs", Reason.READ_ONLY)
        if self._damage is not None:
            raise self._damage
        result, finish = attempted(self._writer, lambda c: self._with_rider(c, work), PATIENCE_S)
        if finish is not None:
            finish()
        if self.url.get_backend_name() == "sqlite":
            sqlite.trim(self._writer, Path(self.url.database or ""))
        return result

    def _with_rider(
        self, connection: Connection, work: Work[T]
    ) -> tuple[T, Callable[[], None] | None]:
        result = work(connection)
        return result, self.rider(connection) if self.rider is not None else None

    def query(self, work: Work[T]) -> T:
        """Run `work` as `read` does, on the caller's thread."""
        assert self._reader is not None, "open() comes first"
        return attempted(self._reader, work, PATIENCE_S)


def without_password(url: str) -> str:
    """Return a database's address for logs and messages."""
    return re.sub(r"(://[^:/@]*):[^/]*@", r"\1:***@", url)


def _with_driver(url: URL) -> URL:
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InvalidInput(f"BANYAN_DATABASE={url} is neither sqlite nor postgresql")
    return url
