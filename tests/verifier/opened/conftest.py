"""The proof that this machine confines sessions, made once for all tests of a process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.verifier.jail.chosen_sessions import ChosenSessions


@pytest.fixture(scope="session")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the battery's result is kept."""
    return tmp_path_factory.mktemp("proof")


@pytest_asyncio.fixture
async def sessions(proof: Path) -> AsyncIterator[ChosenSessions]:
    """Yield sessions that were proven on this machine."""
    made = ChosenSessions(proof, b"k" * 32)
    yield made
    await made.close()
