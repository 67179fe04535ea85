"""Migration of an open connection's schema; the migrations are part of the package."""

import logging
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from banyan.errors import InvalidInput

_FOLDER = Path(__file__).parent / "migrations"
HEAD = "0020"


def version(connection: Connection) -> str:
    """Return the schema's version; empty for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "")


def is_older(connection: Connection) -> bool:
    """Return whether the schema is that of an earlier version."""
    return "" < version(connection) < HEAD


def upgrade(connection: Connection) -> None:
    """Run the missing migrations in the caller's transaction. Raises InvalidInput for a newer
    schema.
    """
    stored = version(connection)
    if stored == HEAD:
        return
    if stored > HEAD:
        raise InvalidInput(
            f"the store's schema is {stored}, newer than {HEAD} of this version;"
            " use the version that wrote it"
        )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Imported here: alembic is needed only if there is something to migrate.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def check(connection: Connection) -> None:
    """Raise InvalidInput unless the schema is the one of this version."""
    stored = version(connection)
    if stored != HEAD:
        remedy = (
            "use the version that wrote it"
            if stored > HEAD
            else "start a treestore that writes (without BANYAN_READ_ONLY) on it once"
        )
        raise InvalidInput(
            f"the store's schema is {stored or 'empty'}, this version reads {HEAD}; {remedy}"
        )
