"""The protocol of the experiment `trees`: what is measured, in which order, and what is chosen.

Settings are chosen on seeds of their own, over equal grids for all arms, before any seed that is
reported; among independent samples the estimator is chosen first, at the middle shape. A best
setting at a grid's edge widens the grid (`WIDENED`, by hand, with a commit).
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.kept import Cell
from bench.trees import arms, course, policy
from bench.trees.arms import ARMS, LAST, RATES, SHAPES, Arm, Setting, Task
from bench.trees.choice import best
from bench.trees.process import InProcess

TUNING = (100, 101)
MAIN = Task(16)
SEEDS: Mapping[Task, Sequence[int]] = {
    MAIN: range(10),
    Task(8): range(5),
    Task(32): range(5),
    Task(16, LAST): range(5),
}
LONGEST = max(task.operations for task in SEEDS)
CAPS: Mapping[int, int] = {8: 400_000, 16: 1_000_000, 32: 1_600_000}
"""Sampled tokens of a run at most, by operations."""
BEYOND_CAP = 3_200_000
"""The same where the longest task goes on: nothing is learnt of it before `CAPS`."""
RIVALS = ("iid-grpo", "iid-dr-grpo", "iid-rloo")
CONTROL = "iid-gigpo"  # credit by step without trees
TREES = ("eptree", "forks-grpo", "forks-outcome", "forks-rose", "treepo", "tree-grpo")
OTHERS = (*TREES, CONTROL)
SCREENED = ("rose", "latr", "dars", "echo")
"""Recipes that are only looked at: one setting, few seeds."""
SCREEN = Setting(8, 16, RATES[1])
SCREEN_SEEDS = range(3)
_FEWEST, _MOST = (tuple(Setting(*shape, rate) for rate in RATES) for shape in ((32, 4), (2, 64)))
_FASTEST = (Setting(*SHAPES[0], 2 * RATES[-1]),)
WIDENED: Mapping[str, Sequence[Setting]] = {
    "eptree": _FEWEST,
    "forks-grpo": _FEWEST,
    "forks-outcome": _FEWEST,
    "iid-gigpo": (*_FEWEST, *_FASTEST),
    "iid-grpo": (*_FEWEST, *_MOST, *_FASTEST),  # a rival is tried with all that others are
    "tree-grpo": _FEWEST,
    "treepo": _MOST,
}
"""Settings beside the grid, by arm: neighbours of a best one at its edge."""


@dataclass(frozen=True)
class Wanted:
    """A run to measure.

    beyond: it goes on beyond the cap of its task
    """

    arm: Arm
    task: Task
    setting: Setting
    seed: int
    beyond: bool = False

    @property
    def name(self) -> str:
        """Name of its cell."""
        of = f"K{self.task.operations}-{self.task.right}{'-beyond' if self.beyond else ''}"
        return f"{of}/{self.arm.name}/{self.setting.name}/{self.seed}"

    @property
    def cap(self) -> int:
        """Sampled tokens at most."""
        return BEYOND_CAP if self.beyond else CAPS[self.task.operations]

    def asked(self) -> dict[str, Any]:
        """Return all that decides about its figures."""
        recipe = arms.recipe(self.arm, self.task, self.setting, self.seed)
        parts = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"model"})
        return {"policy": policy.digest(), "cap": self.cap, "grid": course.GRID, "recipe": parts}

    def measure(self) -> Cell:
        """Run it."""
        recipe = arms.recipe(self.arm, self.task, self.setting, self.seed)
        return course.run(InProcess(recipe, facts=self.arm.facts), self.cap)


Get = Callable[[Wanted], Cell | None]


def grid(arm: str) -> list[Setting]:
    """Return the settings that an arm is tuned over."""
    pairs = itertools.product(SHAPES, RATES)
    settings = [Setting(groups, leaves, rate) for (groups, leaves), rate in pairs]
    return [*settings, *WIDENED.get(arm, ())]


def tuning(arm: str) -> list[Wanted]:
    """Return the runs that an arm is tuned on."""
    return _runs(arm, grid(arm))


def first_look(arm: str) -> list[Wanted]:
    """Return the runs by which estimators of independent samples are compared: the middle shape."""
    return _runs(arm, [s for s in grid(arm) if (s.groups, s.leaves) == SHAPES[1]])


def _runs(arm: str, settings: Sequence[Setting]) -> list[Wanted]:
    return [Wanted(ARMS[arm], MAIN, s, seed) for s in settings for seed in TUNING]


def rival(get: Get) -> str | None:
    """Return the independent samples whose estimator costs the least; None while runs are
    missing."""
    found = {name: best(first_look(name), get) for name in RIVALS}
    there = {name: cost[0] for name, cost in found.items() if cost is not None}
    return min(there, key=lambda name: there[name]) if len(there) == len(RIVALS) else None


def tuned(arm: str, get: Get) -> Setting | None:
    """Return an arm's best setting; None while runs are missing."""
    found = best(tuning(arm), get)
    return found[1] if found is not None else None


def tree(get: Get) -> str | None:
    """Return the trees that answer for the bar: those whose best setting costs the least.

    None while runs are missing.
    """
    found = {name: best(tuning(name), get) for name in TREES}
    there = {name: cost[0] for name, cost in found.items() if cost is not None}
    return min(there, key=lambda name: there[name]) if len(there) == len(TREES) else None


@dataclass(frozen=True)
class _Side:
    """An arm at its best setting, with the tokens that its updates sample."""

    arm: str
    setting: Setting
    taken: float


def _sides(get: Get) -> tuple[_Side, _Side] | None:
    """Return the rival, and the trees that answer for the bars; None while runs are missing."""
    sides = list[_Side]()
    for name in (rival(get), tree(get)):
        setting = tuned(name, get) if name is not None else None
        if name is None or setting is None:
            return None
        cells = [get(Wanted(ARMS[name], MAIN, setting, seed)) for seed in TUNING]
        ends = [cell["points"][-1] for cell in cells if cell is not None]
        taken = sum(e["sampled"] for e in ends) / sum(e["updates"] for e in ends)
        sides.append(_Side(name, setting, taken))
    return sides[0], sides[1]


def matched(get: Get) -> list[Wanted]:
    """Return the runs that tune those trees to the tokens of an update of the rival's.

    As many prompts as sample as much with the trees' best leaves, over all rates; nothing while
    runs are missing.
    """
    sides = _sides(get)
    return _resized(sides[1], sides[0].taken) if sides is not None else []


def matched_rival(get: Get) -> list[Wanted]:
    """Return the runs that tune the rival, likewise, to the tokens of an update of the trees'."""
    sides = _sides(get)
    return _resized(sides[0], sides[1].taken) if sides is not None else []


def _resized(side: _Side, taken: float) -> list[Wanted]:
    groups, leaves = round(side.setting.groups * taken / side.taken), side.setting.leaves
    return _runs(side.arm, [Setting(groups, leaves, rate) for rate in RATES])


def matched_runs(runs: Sequence[Wanted], get: Get) -> list[Wanted]:
    """Return the reported runs at equal tokens an update, if the rate of these is chosen."""
    found = best(runs, get) if runs else None
    if found is None:
        return []
    return [Wanted(runs[0].arm, MAIN, found[1], seed) for seed in SEEDS[MAIN]]


def beyond(get: Get) -> list[Wanted]:
    """Return the runs of the longest task that go on beyond its cap, of its three arms."""
    longest = [w for w in reported(get) if w.task.operations == LONGEST]
    return [replace(wanted, beyond=True) for wanted in longest]


def screened(get: Get) -> list[Wanted]:
    """Return the runs of the screen, which depend on no other."""
    return [Wanted(ARMS[n], MAIN, SCREEN, seed) for n in SCREENED for seed in SCREEN_SEEDS]


def reported(get: Get) -> Iterator[Wanted]:
    """Yield the runs that are reported, as far as their settings are chosen.

    The longest task has three arms: the rival, credit by step without trees, and the trees that
    answer for the bar.
    """
    first, best_tree = rival(get), tree(get)
    names = [first, *OTHERS] if first is not None else OTHERS
    settings = {name: tuned(name, get) for name in names}
    for task, seeds in SEEDS.items():
        for seed in seeds:
            for name, setting in settings.items():
                few = task.operations == LONGEST and name not in (first, CONTROL, best_tree)
                if setting is not None and not few:
                    yield Wanted(ARMS[name], task, setting, seed)
