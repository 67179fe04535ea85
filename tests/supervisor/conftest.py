"""What the tests of processes that are forked share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.supervisor import warm
from services.supervisor.warm import WarmProcess
from tests.supervisor.warmed import ROOT


@pytest_asyncio.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WarmProcess]:
    """Yield a process that imports a module of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(warm, "IMPORTED", ("tests.supervisor.imported",))
    process = WarmProcess(tmp_path / "warm.log")
    yield process
    await process.end()
