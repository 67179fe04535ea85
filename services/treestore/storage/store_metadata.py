"""Facts about the store itself, by name."""

from sqlalchemy import Connection, bindparam, delete, insert, select

from services.treestore.storage.schema import meta

# Made once: every transaction that stores events asks.
_READ = select(meta.c.value).where(meta.c.key == bindparam("name"))
_DELETE = delete(meta).where(meta.c.key == bindparam("name"))
_INSERT = insert(meta)


def read_text(connection: Connection, key: str, default: str = "") -> str:
    """Return a fact, or the default."""
    value = connection.scalar(_READ, {"name": key})
    return default if value is None else value


def read_int(connection: Connection, key: str) -> int:
    """Return a number; 0 if it is missing."""
    return int(read_text(connection, key, "0"))


def put(connection: Connection, key: str, value: str | int) -> None:
    """Set a fact."""
    connection.execute(_DELETE, {"name": key})
    connection.execute(_INSERT, {"key": key, "value": str(value)})


def rise(connection: Connection, key: str) -> int:
    """Add one to a number, and return the new one."""
    value = read_int(connection, key) + 1
    put(connection, key, value)
    return value
