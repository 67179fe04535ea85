"""One run through all five services, read seldom so that reading takes no part in the
measurement."""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as rs
from bench.harness import curve
from bench.harness.curve import Curve
from tests.faults.harness import OVER, system

Look = Callable[[Path, str], None]


def run(
    recipe: Recipe,
    enough: Callable[[Curve], bool] = lambda _: False,
    deadline_s: float = 900.0,
    look: Look = lambda database, run_id: None,
) -> Curve:
    """Run a recipe in new processes, to its end or until enough of it is done.

    look: function that reads its store once at the end
    """
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(recipe, Path(folder), enough, deadline_s, look))


async def _run(
    recipe: Recipe, state: Path, enough: Callable[[Curve], bool], deadline_s: float, look: Look
) -> Curve:
    end = time.monotonic() + deadline_s
    async with system(state) as started:
        run_id = await started.create(recipe.model_dump())
        while time.monotonic() < end:
            state_of_run = (await started.look()).run
            so_far = _read(state / "store.sqlite", run_id)
            if state_of_run.state == rs.RUN_STATE_SUCCEEDED or enough(so_far):
                look(state / "store.sqlite", run_id)
                return so_far
            if state_of_run.state in OVER:
                raise RuntimeError(f"{run_id} failed: {state_of_run.cause}")
            await asyncio.sleep(1.0)
    raise TimeoutError(f"{run_id} is not over after {deadline_s:.0f} s")


def _read(database: Path, run_id: str) -> Curve:
    try:
        return curve.read(database, run_id)
    except sqlite3.OperationalError:  # the store is about to make its tables
        return Curve()
