"""Two processes with torch on two cores: in turn with all cores each, or at once with half."""

import asyncio

from banyan.recipe_loader.load import load
from bench.harness.compared import RECIPE
from bench.harness.table import Result
from bench.overhead import services

STEPS = 12  # the first ones warm up


def run() -> Result:
    """Run the same number of steps with max_staleness 0 and 1."""
    result = Result("turns")
    mean: dict[int, float] = {}
    for staleness in (0, 1):
        changes = [f"budget.steps={STEPS}", f"control.max_staleness={staleness}"]
        seconds = asyncio.run(
            services(load(RECIPE, [*changes, "eval.samples=0", "eval.max_rows=2"]))
        ).steps
        mean[staleness] = sum(seconds) / len(seconds)
        how = "in turn, all cores each" if staleness == 0 else "at once, cores divided"
        result.add(f"max_staleness {staleness}: {how}, seconds a step", mean[staleness], "s")
    result.add("at once / in turn", mean[1] / mean[0], "x")
    return result
