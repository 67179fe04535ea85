"""Children that are never launched, or whose asker leaves meanwhile: no folder of theirs stays."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import InvalidInput
from services.verifier.jail.zygote import Zygote
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.worker import ScorerSpec, Worker

SPEC = ScorerSpec("numeric", {})
Start = Callable[[], Coroutine[Any, Any, object]]
STARTS: dict[str, Start] = {
    "worker": lambda: Worker.start(SPEC, Limits()),
    "zygote": lambda: Zygote.start("process"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def test_an_interpreter_that_is_not_there_costs_no_folder(folder: Path) -> None:
    """Every action of a run whose recipe names one asks for it again."""
    spec = ScorerSpec("numeric", {}, python="/nowhere/python")
    with pytest.raises(InvalidInput, match="is no interpreter"):
        await Worker.start(spec, Limits())
    assert not list(folder.iterdir())


@pytest.mark.parametrize("what", STARTS)
async def test_a_start_that_is_cancelled_at_any_time_leaves_nothing(
    folder: Path, what: str, eventually: Callable[..., Awaitable[None]]
) -> None:
    handles = len(os.listdir("/proc/self/fd"))
    for turns in range(6):
        task = asyncio.create_task(STARTS[what]())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert not list(folder.iterdir())
    await eventually(
        lambda: len(os.listdir("/proc/self/fd")) <= handles, 10.0, "descriptors closed"
    )
