"""Locks of a database by another connection, and limits of the writer's statements."""

from typing import Any

from sqlalchemy import text

from tests.treestore.forge import World


def release(world: World, other: Any) -> None:
    """Unlock the database, and give statements time."""
    other.execute("ROLLBACK")
    if world.database.url.get_backend_name() == "postgresql":
        limit_statements(world, 0)


def limit_statements(world: World, limit_ms: int) -> None:
    """Bound the statements of the writer: their time is over before that of a lock, as in a
    database under load.
    """
    for name, value in (("lock_timeout", 10_000), ("statement_timeout", limit_ms)):
        world.database.transact(lambda c, n=name, v=value: c.execute(text(f"SET {n} = {v}")))
