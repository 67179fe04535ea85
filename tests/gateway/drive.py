"""Runs under a driver over the store in memory (conftest.py)."""

from pathlib import Path

from services.gateway.runs.create import new_run
from services.gateway.runs.driver import Driver
from services.gateway.tasks import dataset as rows_module


async def begin(store, recipe):
    """A run of the recipe, stored, and its rows."""
    rows = await rows_module.load(recipe, Path.cwd())
    run = new_run(recipe, rows, "/folder", Path("s")).run
    await store.put_run(run, "request")
    return run, rows


async def driver_of(store, bus, recipe):
    """A driver of the stored run, or of a new one."""
    run, rows = (
        await begin(store, recipe) if not store.runs else (next(iter(store.runs.values())), None)
    )
    rows = rows or await rows_module.load(recipe, Path.cwd())
    return Driver(store, bus, store, recipe, rows, run.run_id, 1)


async def until_over(store, bus, recipe, driver, looks: int = 200) -> None:
    """Looks, grows and trains in turn. Raises AssertionError if the run does not end."""
    for _ in range(looks):
        if await driver.look():
            return
        if not store.policies:
            store.publish(0)
        store.finish()
        store.train(recipe.control.groups_per_batch)
    raise AssertionError(f"the run did not end: {store.moves}")
