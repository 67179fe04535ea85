"""LATR: updates until a policy is right, against GRPO on independent samples."""

from collections.abc import Sequence
from typing import Any

from bench.claims.claim import Claim, Finding, verdict
from bench.claims.learning.chains import GROUPS, RATE, TASK, Arm
from bench.harness.kept import Cell
from bench.trees import course
from bench.trees.figures import Spent, ratio

LEAVES, CAP = 8, 300_000
SETTINGS: dict[str, Any] = {
    "width": LEAVES,
    "preset": "math",
    "chunk": 6,
    "ages": [6, 12],
    # A chain behind another result differs from it in two letters of six.
    "edit_distance": 0.2,
    "suffix": 1.0,
    "rouge": 1.0,
}
_SAID = 1.31


def measure(seed: int) -> Cell:
    """Return both courses."""
    generate = {"policy": "latr", "settings": SETTINGS}
    arms = {
        "latr": Arm(width=LEAVES, generate=generate, changes={"allow_truncated_sampling": True}),
        "grpo": Arm(width=LEAVES),
    }
    return {name: course.run(arm.process(seed), CAP) for name, arm in arms.items()}


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare updates until the policy is right; a run that does not get there counts as cut."""
    grpo, latr = ([_updates(cell[arm]) for cell in cells] for arm in ("grpo", "latr"))
    found = ratio(grpo, latr)
    bound = "" if found.exact else " (some runs did not get there: a bound)"
    return Finding(
        ours=f"{100 * found.estimate:.0f} % of GRPO's speed in updates{bound}",
        n=f"{len(cells)} seeds a side",
        interval=f"{100 * found.low:.0f} to {100 * found.high:.0f} %",
        on="chains of 8 operations, the small policy of `trees`, until 90 % are right",
        verdict=verdict(found.low, found.high, _SAID),
    )


def _updates(cell: Cell) -> Spent:
    there = course.reached(cell, "updates")
    last = float(cell["points"][-1]["updates"])
    return Spent(there) if there is not None else Spent(max(last, 1.0), censored=True)


CLAIM = Claim(
    name="latr",
    system="LATR (arXiv 2510.24302)",
    says="learns at 131 % of GRPO's speed",
    tell=tell,
    seeds=range(3),
    asked={"settings": SETTINGS, "cap": CAP, "groups": GROUPS, "rate": RATE, "task": TASK.tokens},
    measure=measure,
)
