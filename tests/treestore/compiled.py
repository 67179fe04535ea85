"""Statements that all stores of a test process compile once.

SQLAlchemy keeps them for each engine, and a test has engines of its own: to compile the same
statements again for each was a fifth of what the treestore's tests compute.
"""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import create_engine

from services.treestore.storage import postgres, sqlite


class Compiled(dict[Any, Any]):
    """Compiled statements by kind of database and statement, in place of engine and statement."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_shared(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_shared(key), value)


def _shared(key: Any) -> Any:
    return (type(key[0]), *key[1:])


def share() -> None:
    """Let all engines that are made from now on have one cache."""
    made = partial(create_engine, execution_options={"compiled_cache": Compiled()})
    patch = pytest.MonkeyPatch()  # for as long as the process lives
    for module in (postgres, sqlite):
        patch.setattr(module, "create_engine", made)
