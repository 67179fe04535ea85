"""Meaning of errors of the database. Pure (ADR 045).

There are three kinds. The data breaks a rule of the database: trying again cannot help, and only
    the sender of the data is to blame. The file is damaged: no write may follow. All other errors
    are about the database and not about the data: they are temporary, whether they pass by
    themselves or somebody has to mend the server.
"""

import sqlite3
from pathlib import Path
from types import ModuleType

from sqlalchemy.exc import DBAPIError

from banyan.errors import InvalidInput, TemporaryError
from banyan.reasons import Reason

FULL, UNAVAILABLE, FAILED = Reason.STORE_FULL, Reason.STORE_UNAVAILABLE, Reason.STORE_FAILED
_SOON = ("08", "40001", "40P01", "55P03", "57P", "53")  # SQLSTATE classes that pass within moments
_AWAY = (*_SOON, "25", "57", "58")  # … or when the server recovers, whatever the statement
_NO_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_NO_FILE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_HELD = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_NOMEM,
)
_TORN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class StoreDamaged(InvalidInput):
    """A file of the store that cannot be read as one; the message says where and what to do."""

    reason = Reason.STORE_DAMAGED


def damaged(file: str, finding: str) -> StoreDamaged:
    """Return the error of a store's file that is damaged."""
    folder = Path(file).parent
    return StoreDamaged(
        f"the store {file} is damaged: {finding}; nothing more is written to it."
        " Put a copy of it back, or begin anew in another folder from a checkpoint:"
        f" banyan train RECIPE --state OTHER --set model={folder}/runs/RUN/checkpoints/STEP"
        " (this loses the trees, scores and metrics that `banyan export RUN` cannot read any more,"
        " and the optimizer's moments; weights are files of their own)"
    )


def no_store(file: str, finding: str) -> StoreDamaged:
    """Return the error of a file that is no store, or has lost its first page."""
    return StoreDamaged(
        f"{file} is no store that can be read: {finding}; put a copy of it back,"
        " or name another folder with --state"
    )


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's own error, unwrapped."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def breaks_rule(cause: BaseException, driver: ModuleType) -> bool:
    """Return True if the data is at fault: SQLSTATE classes 22 and 23, and their counterparts of
    SQLite.
    """
    return isinstance(cause, (driver.IntegrityError, driver.DataError))


def torn(cause: BaseException) -> bool:
    """Return True if SQLite found its file damaged, or no database at all."""
    return _code(cause) in _TORN


def is_store(cause: BaseException) -> bool:
    """Return True if a torn file is a database of SQLite all the same."""
    return _code(cause) != sqlite3.SQLITE_NOTADB


def soon_over(error: BaseException, driver: ModuleType) -> bool:
    """Return True if the same transaction may succeed within moments, on a new connection if need
    be.
    """
    cause = cause_of(error)
    state = getattr(cause, "sqlstate", None) or ""
    lost = not _of_sqlite(cause) and isinstance(cause, driver.OperationalError) and not state
    return lost or getattr(error, "connection_invalidated", False) or state.startswith(_SOON)


def meaning(error: BaseException, driver: ModuleType) -> TemporaryError:
    """Return the error for callers. FAILED: nothing shows that the database is at fault in general,
    so other transactions may succeed.
    """
    cause = cause_of(error)
    text = str(cause).strip() or type(cause).__name__
    if _code(cause) in _NO_SPACE or "No space left" in text:
        return TemporaryError(
            f"the store cannot write: {text}; free space on its disk, it goes on by itself",
            reason=FULL,
        )
    if _code(cause) in _NO_FILE:
        return TemporaryError(
            f"the store cannot write its file: {text}; check the folder's owner and rights",
            reason=UNAVAILABLE,
        )
    if (
        _code(cause) in _HELD
        or soon_over(error, driver)
        or (getattr(cause, "sqlstate", None) or "").startswith(_AWAY)
    ):
        return TemporaryError(f"the database does not answer: {text}", reason=UNAVAILABLE)
    return TemporaryError(
        f"the database failed: {text} ({type(cause).__name__}); nothing was lost, see its own log",
        reason=FAILED,
    )


def _of_sqlite(cause: BaseException) -> bool:
    return isinstance(cause, sqlite3.Error)


def _code(cause: BaseException) -> int:
    """Return SQLite's primary result code; 0 for other errors."""
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF
