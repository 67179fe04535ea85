"""The preview of control for `banyan simulate`: its own decisions on made-up rollouts.

It needs no store, no log and no clock. Growth inside a tree is not simulated here; that is done by
services/rollout/simulation/simulate.py.
"""

from pathlib import Path

from banyan.recipe import Recipe
from services.gateway.preview.simulated_run import SimulatedRun
from services.gateway.preview.summary import summary


def preview(recipe: Recipe, base: Path) -> dict[str, int | float | str]:
    """Simulate the first steps of a recipe; return figures by name.

    The last figure names the parts of control that were left out. Raise InvalidInput for a
    curriculum that raises, returns invalid allocations, or takes too long.
    """
    run = SimulatedRun(recipe, base)
    while run.step < run.steps:
        run.advance()
    return summary(run)
