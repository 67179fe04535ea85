"""The gateway's health answers for its sweep of all runs, and for the driver of each run."""

from typing import Any

from tests.liveness import answers_for


async def test_health_answers_for_the_runs_together_and_for_each_ones_driver(
    here: Any, eventually: Any
) -> None:
    drivers = here.running.drivers
    await eventually(lambda: here.run_id in drivers._drivers, 10, "a driver on the run")
    await answers_for(here.running.address, ("runs", f"run {here.run_id}"))
