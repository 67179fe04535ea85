"""Facts about the store itself, by name."""

from sqlalchemy import Connection, delete, insert, select

from services.treestore.storage.schema import meta


def read_text(connection: Connection, key: str, default: str = "") -> str:
    """A fact, or the default."""
    value = connection.scalar(select(meta.c.value).where(meta.c.key == key))
    return default if value is None else value


def read_int(connection: Connection, key: str) -> int:
    """A number; 0 if it is not there."""
    return int(read_text(connection, key, "0"))


def put(connection: Connection, key: str, value: str | int) -> None:
    """Sets a fact."""
    connection.execute(delete(meta).where(meta.c.key == key))
    connection.execute(insert(meta).values(key=key, value=str(value)))


def rise(connection: Connection, key: str) -> int:
    """Adds one to a number; the new one."""
    value = read_int(connection, key) + 1
    put(connection, key, value)
    return value
