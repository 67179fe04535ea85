"""Brings the schema of an open connection up to date; the migrations travel inside the package."""

import logging
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from banyan.errors import InvalidInput

_FOLDER = Path(__file__).parent / "migrations"
HEAD = "0011"


def version(connection: Connection) -> str:
    """The schema's version; empty for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "")


def upgrade(connection: Connection) -> None:
    """Runs the migrations that are missing, in the caller's transaction."""
    found = version(connection)
    if found == HEAD:
        return
    if found > HEAD:
        raise InvalidInput(
            f"the store's schema is {found}, newer than {HEAD} of this version; use the version that wrote it"
        )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Imported here: alembic is only needed where there is something to migrate.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def check(connection: Connection) -> None:
    """Refuses a schema that this version does not know."""
    found = version(connection)
    if found != HEAD:
        raise InvalidInput(
            f"the store's schema is {found or 'empty'}, this version reads {HEAD}; start the treestore once"
        )
