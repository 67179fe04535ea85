"""Time to sample a step's trees against independent samples, at equal leaves of 96 tokens.

Pairs in turns, in one process on one thread, on the policy of the experiment `trees`. Occupancy is
the share of a step's leaves that the engine decodes at once, in the mean over its positions.
"""

from dataclasses import dataclass, field

from bench.harness.table import Result, median
from bench.trees import arms
from bench.trees.arms import ARMS, Setting, Task
from bench.trees.process import Counts, InProcess

PAIRS, WARM = 7, 1
TASK, SETTING = Task(16), Setting(8, 16, 1e-4)
RIVAL = "iid-grpo"
TREES = ("forks-rose", "treepo", "tree-grpo", "rose")
_NAMES = {"forks-rose": "treepo-eager"}  # the tree policy of the arm
_BARS = {"forks-rose": "at most 1"}


@dataclass
class Side:
    """Counts of an arm's steps."""

    process: InProcess
    counts: list[Counts] = field(default_factory=list)

    def step(self, number: int) -> None:
        """Sample one step's trees, and train on none."""
        self.counts.append(self.process.sample(number))

    @property
    def occupancy(self) -> float:
        """Mean share of the leaves that are decoded at once."""
        return median([c.branches / c.positions / c.leaves for c in self.counts[WARM:]])


def run() -> Result:
    """Measure all tree policies."""
    result = Result("growing")
    for name in TREES:
        _compare(result, name)
    return result


def _compare(result: Result, name: str) -> None:
    ours, theirs = (
        Side(InProcess(arms.recipe(ARMS[arm], TASK, SETTING, 0))) for arm in (name, RIVAL)
    )
    for number in range(WARM + PAIRS):
        for side in (theirs, ours) if number % 2 else (ours, theirs):
            side.step(number)
    pairs = zip(ours.counts[WARM:], theirs.counts[WARM:], strict=True)
    ratios = sorted(a.growing_s / b.growing_s for a, b in pairs)
    shown = _NAMES.get(name, name)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}, {PAIRS} pairs"
    bar = _BARS.get(name, "")
    result.add(f"{shown}: seconds, over iid's", median(ratios), "", f"{bar}; {spread}".lstrip("; "))
    for what in ("sampled", "positions"):
        parts = [[getattr(c, what) for c in side.counts[WARM:]] for side in (ours, theirs)]
        result.add(f"{shown}: {what}, over iid's", median(parts[0]) / median(parts[1]), "")
    result.add(f"{shown}: occupancy", ours.occupancy, "", f"iid {theirs.occupancy:.2f}")
