"""Statements for both databases, built once each."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Table, insert
from sqlalchemy.dialects import postgresql, sqlite

Values = Mapping[str, Any]


def insert_all(connection: Connection, table: Table, rows: Sequence[Values]) -> None:
    """Insert the rows, in order."""
    if rows:
        connection.execute(_insert(table), rows)


def insert_ignore(connection: Connection, table: Table, rows: Sequence[Values]) -> None:
    """Insert the rows whose keys are new; the others stay as they are."""
    if rows:
        connection.execute(_insert_new(table, connection.dialect.name), rows)


# Made once: building a statement of many columns costs more than running it.
_insert = functools.cache(insert)


@functools.cache
def _insert_new(table: Table, dialect: str) -> Insert:
    make = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return make(table).on_conflict_do_nothing()
