"""Fixtures of the gateway's tests: a store and a log in memory, a live site, and small recipes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from banyan.recipe import Recipe
from banyan.recipe_loader import load
from tests.gateway.live_site import Site, site
from tests.gateway.memory_store import MemoryLog, MemoryStore


def make_recipe(**parts: Any) -> Recipe:
    """Return a recipe of the arithmetic task with small numbers; `parts` are merged into it."""
    data: dict[str, Any] = {
        "name": "tiny",
        "model": "none",
        "task": {"name": "arithmetic", "holdout": 0.3},
        "control": {"groups_per_batch": 4},
        "budget": {"steps": 3},
        "eval": {"samples": 2, "max_rows": 3},
        "resources": {"engine": "scripted"},
    }
    for key, value in parts.items():
        data[key] = {**data[key], **value} if isinstance(data.get(key), dict) else value
    return load.resolve(data)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def bus(store: MemoryStore) -> MemoryLog:
    return MemoryLog(store)


@pytest.fixture
def fresh() -> Any:
    """Return a function that makes further stores, each with its log."""

    def make() -> tuple[MemoryStore, MemoryLog]:
        store = MemoryStore()
        return store, MemoryLog(store)

    return make


@pytest.fixture
def recipe_of() -> Any:
    return make_recipe


@pytest.fixture
async def here(tmp_path: Path, recipe_of: Any) -> AsyncIterator[Site]:
    """Run a live site with a run."""
    async with site(tmp_path) as live:
        live.run_id = (await live.create(recipe_of(task={"holdout": 0.0}))).run_id
        yield live
