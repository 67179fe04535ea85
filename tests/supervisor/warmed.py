"""Children that may be forked, and what they tell."""

import json
import os
from pathlib import Path
from typing import Any

from services.supervisor.child import Child
from services.supervisor.warm import WarmProcess
from tests.conftest import wait_until

ROOT = Path(__file__).parents[2]
FORKED = "tests.supervisor.forked"


def child(folder: Path, name: str = "c", **env: str) -> Child:
    """Return a child that may be forked."""
    return Child(name, "c", ["python", "-m", FORKED], env, folder / f"{name}.log", warm=True)


async def started(process: WarmProcess, one: Child) -> dict[str, Any]:
    """Start a child, and return what it tells of itself once it has."""
    forked = await process.start(one)
    assert forked is not None
    one.started_as(forked)
    await wait_until(lambda: "}\n" in one.log.read_text())
    return dict(json.loads(one.log.read_text().splitlines()[0]))


def holds(descriptor: Path, file: Path) -> bool:
    """Return True if a descriptor of a process is that file."""
    try:
        return os.readlink(descriptor) == str(file)
    except OSError:
        return False
