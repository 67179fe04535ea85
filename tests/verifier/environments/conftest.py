"""The proof that this machine confines sessions, made once for all tests of a process."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the battery's result is kept."""
    return tmp_path_factory.mktemp("proof")
