"""What a run cost, and which setting of several costs the least."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Protocol, TypeVar

from bench.harness.kept import Cell
from bench.trees import course
from bench.trees.arms import Setting
from bench.trees.figures import Spent


class Tried(Protocol):
    """A run with a setting."""

    @property
    def setting(self) -> Setting:
        """Setting of the run."""


Run = TypeVar("Run", bound=Tried)


def best(runs: Sequence[Run], get: Callable[[Run], Cell | None]) -> tuple[float, Setting] | None:
    """Return the mean log of what the best setting of some runs costs, and the setting.

    None while runs are missing.
    """
    costs: dict[Setting, list[float]] = {}
    for run in runs:
        cell = get(run)
        if cell is None:
            return None
        costs.setdefault(run.setting, []).append(math.log(cost(cell)))
    setting = min(costs, key=lambda setting: fmean(costs[setting]))
    return fmean(costs[setting]), setting


def cost(cell: Cell) -> float:
    """Return the tokens of a run; more than its cap, the more the less accurate it was there."""
    there = course.reached(cell)
    return there if there is not None else cell["cap"] * (2 - cell["points"][-1]["accuracy"])


def spent(cell: Cell, what: str = "sampled") -> Spent:
    """Return what a run spent until it got there.

    Sampled tokens of one that did not are its cap: by how much its last update went beyond depends
    on how large updates are.
    """
    there = course.reached(cell, what)
    if there is not None:
        return Spent(there)
    spent_then = cell["cap"] if what == "sampled" else cell["points"][-1][what]
    return Spent(float(spent_then), censored=True)
