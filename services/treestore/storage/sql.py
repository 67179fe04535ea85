"""Statements in bulk for both databases, built once each.

Building a statement of many columns costs more than running it, so all are cached.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Insert,
    Row,
    Select,
    Table,
    TextClause,
    bindparam,
    insert,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")
Values = Mapping[str, Any]
_CHUNK = 2000  # keys in one statement, below the databases' limits for parameters


def insert_all(connection: Connection, table: Table, rows: Sequence[Values]) -> None:
    """Insert the rows, in order."""
    if rows:
        connection.execute(_insert(table), rows)


def insert_ignore(connection: Connection, table: Table, rows: Sequence[Values]) -> None:
    """Insert the rows whose keys are new; the others stay as they are."""
    if rows:
        connection.execute(_insert_new(table, connection.dialect.name), rows)


def add_counts(
    connection: Connection, table: Table, rows: Sequence[Values], column: str, *newest: str
) -> None:
    """Add each row's `column` to the row with the same primary key, or insert it.

    newest: columns that the row's values replace.
    """
    if rows:
        connection.execute(_insert_or_add(table, connection.dialect.name, column, newest), rows)


_insert = functools.cache(insert)


def _dialect_insert(table: Table, dialect: str) -> Any:
    return (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)


@functools.cache
def _insert_new(table: Table, dialect: str) -> Insert:
    statement: Insert = _dialect_insert(table, dialect).on_conflict_do_nothing()
    return statement


@functools.cache
def _insert_or_add(table: Table, dialect: str, column: str, newest: tuple[str, ...]) -> Insert:
    statement = _dialect_insert(table, dialect)
    changed = {column: table.c[column] + statement.excluded[column]}
    changed |= {name: statement.excluded[name] for name in newest}
    upsert: Insert = statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns), set_=changed
    )
    return upsert


def pair_in(
    table: Table, first: str, second: str, keys: str, dialect: str
) -> ColumnElement[bool] | TextClause:
    """Return the condition that two columns are one of the pairs of the parameter `keys`.

    SQLite looks several pairs up in an index only if they stand in a subquery; without one it reads
    the whole table (3.40: the right side must not be a compound SELECT, and VALUES is one).
    """
    pairs: BindParameter[Any] = bindparam(keys, expanding=True)
    if dialect != "sqlite":
        return tuple_(table.c[first], table.c[second]).in_(pairs)
    named = f"({table.name}.{first}, {table.name}.{second}) IN (SELECT * FROM :{keys})"
    return text(named).bindparams(pairs)


def chunks(items: Iterable[T], size: int = _CHUNK) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def rows_in(
    connection: Connection, table: Table, key: str, values: Iterable[Any], **equal: Any
) -> Iterator[Row[Any]]:
    """Yield the rows whose column `key` is one of the values, in order of arrival.

    equal: values that other columns must have
    """
    statement = _rows_in(table, key, tuple(equal))
    for chunk in chunks(sorted(set(values))):
        yield from connection.execute(statement, {"keys": chunk, **equal})


@functools.cache
def _rows_in(table: Table, key: str, names: tuple[str, ...]) -> Select[Any]:
    equal = [table.c[name] == bindparam(name) for name in names]
    order = [table.c.n] if "n" in table.c else []
    keys: BindParameter[Any] = bindparam("keys", expanding=True)
    return select(table).where(table.c[key].in_(keys), *equal).order_by(*order)
