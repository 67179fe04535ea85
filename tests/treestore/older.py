"""Stores as older versions left them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command

from services.treestore.storage import migrate
from services.treestore.storage.database import Database


@contextlib.contextmanager
def older(path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Yield the file of a store at a version of the schema; the newest version opens it after the
    block.
    """
    upgrade = command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "HEAD", version)
        patch.setattr(command, "upgrade", lambda config, _: upgrade(config, version))
        database = Database(f"sqlite:///{path}").open()
        yield database
        database.close()
