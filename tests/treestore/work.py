"""What a database is asked, and how much SQLite does for it, in steps of its virtual machine: no load changes either."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

from services.treestore.storage.database import Database


def steps(database: Database, work: Callable[[Connection], Any], *, writes: bool = False) -> int:
    """Steps that the statements of `work` take; with `writes`, in a transaction that may write."""
    taken = 0

    def note() -> int:
        nonlocal taken
        taken += 1
        return 0

    def run(connection: Connection) -> None:
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.set_progress_handler(note, 1)
        try:
            work(connection)
        finally:
            raw.set_progress_handler(None, 1)

    (database.transact if writes else database.query)(run)
    return taken


@contextmanager
def statements() -> Iterator[list[str]]:
    """What any database of this process is asked within the block."""
    asked: list[str] = []

    def note(connection, cursor, statement, parameters, context, executemany) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)
