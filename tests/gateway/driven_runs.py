"""Runs under a driver over the store in memory (memory_store.py)."""

from pathlib import Path

from services.gateway.runs.create import new_run
from services.gateway.runs.driver import Driver
from services.gateway.tasks import dataset


async def begin(store, recipe):
    """Store a run of the recipe; return it and its examples."""
    examples = await dataset.load(recipe, Path.cwd())
    run = new_run(recipe, examples, "/folder", Path("s")).run
    await store.put_run(run, "request")
    return run, examples


async def driver_of(store, bus, recipe):
    """Return a driver of the stored run, or of a new one."""
    if not store.runs:
        await begin(store, recipe)
    examples = await dataset.load(recipe, Path.cwd())
    run_id = next(iter(store.runs))
    return Driver(store, bus, store, run_id=run_id, recipe=recipe, examples=examples, epoch=1)


async def until_over(store, bus, recipe, driver, passes: int = 200) -> None:
    """Reconcile, grow and train in turn. Raise AssertionError if the run does not end."""
    for _ in range(passes):
        if await driver.reconcile():
            return
        if not store.policies:
            store.publish(0)
        store.finish()
        store.train(recipe.control.groups_per_batch)
    raise AssertionError(f"the run did not end: {store.moves}")
