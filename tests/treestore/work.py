"""Measures of queries that no load changes: their statements, and the steps of SQLite's virtual
machine.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

from services.treestore.storage.database import Database


def steps(database: Database, work: Callable[[Connection], Any], *, writes: bool = False) -> int:
    """Count the steps that the statements of `work` take; with `writes`, in a transaction that may
    write.
    """
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
    """Collect the statements of any database of this process within the block."""
    executed: list[str] = []

    def note(connection, cursor, statement, parameters, context, executemany) -> None:
        executed.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", note)
