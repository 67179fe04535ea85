"""The protocol of the experiment `sums`: what is measured, and what is chosen.

The trees are the quick start's, with its credit and with `grpo`'s, and those that answer for the
bars of `trees`. All are tried at the same rates, on seeds of their own, but for `grpo`'s credit:
only at the rate that was the best of those before it. The trees that cost least there are reported.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
RIVAL, TREES = "iid-grpo", ("forks-rose", "forks-grpo", "eptree")
CAP, GRID = 40_000, 2_500
"""Sampled tokens of a run at most, and between two of its measurements."""
RATES = (1e-5, 2e-5, 4e-5)
TRIED: Mapping[str, Sequence[float]] = {
    RIVAL: RATES,
    "forks-rose": RATES,
    "forks-grpo": RATES[1:2],
    "eptree": RATES,
}
"""Rates by arm."""
SHAPE = (8, 8)
"""Prompts of an update, and leaves of a prompt."""


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
        return course.run(InProcess(recipe), CAP, grid=GRID, few=0)


Get = Callable[[Wanted], Cell | None]


def tuning(arm: str) -> list[Wanted]:
    """Return the runs that choose an arm's rate."""
    settings = [Setting(*SHAPE, rate) for rate in TRIED[arm]]
    return [Wanted(ARMS[arm], setting, seed) for setting in settings for seed in TUNING]


def tuned(arm: str, get: Get) -> tuple[float, Setting] | None:
    """Return what an arm's best setting costs, and that; None while runs are missing."""
    return best(tuning(arm), get)


def tree(get: Get) -> str | None:
    """Return the trees whose best rate costs the least; None while runs are missing."""
    found = {name: tuned(name, get) for name in TREES}
    there = {name: cost[0] for name, cost in found.items() if cost is not None}
    return min(there, key=lambda name: there[name]) if len(there) == len(TREES) else None


def reported(get: Get) -> Iterator[Wanted]:
    """Yield the reported runs of the arms, seed by seed, as far as their settings are chosen."""
    name = tree(get)
    sides = [(arm, tuned(arm, get)) for arm in (RIVAL, name) if arm is not None]
    for seed in SEEDS:
        for arm, found in sides:
            if found is not None:
                yield Wanted(ARMS[arm], found[1], seed)


def others(get: Get) -> Iterator[Wanted]:
    """Yield the runs on the same seeds of trees that do not answer; not all are measured."""
    name = tree(get)
    for arm in TREES:
        found = tuned(arm, get) if name is not None and arm != name else None
        if found is not None:
            yield from (Wanted(ARMS[arm], found[1], seed) for seed in SEEDS)
