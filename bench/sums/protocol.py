"""The protocol of the experiment `sums`: what is measured, and what is chosen.

Each arm is tried with as many settings on seeds of their own: first rates, at the middle shape,
then shapes, at the best rate. A best setting at an edge widens the grid of all arms alike (by hand,
with a commit).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.kept import Cell
from bench.sums import arms
from bench.sums.arms import ARMS, Arm
from bench.trees import course
from bench.trees.arms import Setting
from bench.trees.choice import best
from bench.trees.process import InProcess

TUNING, SEEDS = (100, 101), range(5)
RIVAL, TREES = "iid-grpo", ("forks-rose", "eptree")
CAP, GRID = 40_000, 1_500
"""Sampled tokens of a run at most, and between two of its measurements."""
RATES = (1e-5, 2e-5, 4e-5)
MIDDLE, BESIDE = (8, 8), ((4, 16), (16, 4))
"""Prompts and leaves of an update; all have 64 leaves."""


@dataclass(frozen=True)
class Wanted:
    """A run to measure."""

    arm: Arm
    setting: Setting
    seed: int

    @property
    def name(self) -> str:
        """Name of its cell."""
        return f"{self.arm.name}/{self.setting.name}/{self.seed}"

    def asked(self) -> dict[str, Any]:
        """Return all that decides about its figures."""
        recipe = arms.recipe(self.arm, self.setting, self.seed)
        parts = recipe.model_dump(mode="json", exclude_defaults=True)
        return {"cap": CAP, "grid": GRID, "recipe": parts}

    def measure(self) -> Cell:
        """Run it."""
        recipe = arms.recipe(self.arm, self.setting, self.seed)
        return course.run(InProcess(recipe), CAP, grid=GRID)


Get = Callable[[Wanted], Cell | None]


def rates(arm: str) -> list[Wanted]:
    """Return the runs that choose an arm's rate."""
    return _runs(arm, [Setting(*MIDDLE, rate) for rate in RATES])


def tuning(arm: str, get: Get) -> list[Wanted]:
    """Return all runs that an arm is tuned on; those of its rates alone while these are missing."""
    first = rates(arm)
    found = best(first, get)
    if found is None:
        return first
    return first + _runs(arm, [Setting(*shape, found[1].rate) for shape in BESIDE])


def _runs(arm: str, settings: Sequence[Setting]) -> list[Wanted]:
    return [Wanted(ARMS[arm], setting, seed) for setting in settings for seed in TUNING]


def tuned(arm: str, get: Get) -> tuple[float, Setting] | None:
    """Return what an arm's best setting costs, and that; None while runs are missing."""
    runs = tuning(arm, get)
    return best(runs, get) if len(runs) > len(rates(arm)) else None


def tree(get: Get) -> str | None:
    """Return the trees that answer for the bar: those whose best setting costs the least."""
    found = {name: tuned(name, get) for name in TREES}
    there = {name: cost[0] for name, cost in found.items() if cost is not None}
    return min(there, key=lambda name: there[name]) if len(there) == len(TREES) else None


def reported(get: Get) -> Iterator[Wanted]:
    """Yield the reported runs of independent samples and of the chosen trees, seed by seed."""
    name = tree(get)
    sides = [(arm, tuned(arm, get)) for arm in (RIVAL, name) if arm is not None]
    for seed in SEEDS:
        for arm, found in sides:
            if found is not None:
                yield Wanted(ARMS[arm], found[1], seed)
