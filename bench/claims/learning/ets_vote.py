"""ETS: a vote over the leaves of its search, weighted by step scores, against REBASE's.

One policy and one head, trained on REBASE's trees, search the same rows twice.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from bench.claims.claim import NOT_SHOWN, SHOWN, UNMEASURED, Claim, Finding
from bench.claims.intervals import differences
from bench.claims.learning import chains, heads
from bench.claims.learning.chains import GROUPS, TASK, Arm
from bench.claims.learning.heads import COLD, ROWS, WIDTH
from bench.harness.kept import Cell
from bench.trees import ballots
from bench.trees.arms import STEP

UPDATES = 12
REBASE: dict[str, float] = {"lambda_b": 0.0, "lambda_d": 0.0}
ETS: dict[str, float] = {"lambda_b": 1.0, "lambda_d": 1.5}  # as published for width 16
SETTINGS: dict[str, Any] = {
    "width": WIDTH,
    "step": STEP,
    "delimiter": "\n",  # no text of a chain: each step has STEP tokens
    "depth": TASK.operations + 1,
    **REBASE,
}
_KEPT = 1.0  # points that count as kept


def measure(seed: int) -> Cell:
    """Return both votes of one policy."""
    process = _arm(REBASE).process(seed)
    course = chains.learnt(process, lambda updates, _: updates >= UPDATES)
    outcomes = {
        name: asdict(ballots.held(process, _arm(search).recipe(seed), ROWS))
        for name, search in (("ets", ETS), ("rebase", REBASE))
    }
    return {**course, **outcomes}


def _arm(search: dict[str, float]) -> Arm:
    return Arm(
        width=WIDTH,
        groups=GROUPS,
        advantage="treepo",
        generate={"policy": "ets", "settings": SETTINGS},
        changes=heads.changes(search),
    )


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare the accuracy of both votes; kept is what loses less than a point."""
    if any(math.isnan(cell[arm]["head"]) for cell in cells for arm in ("ets", "rebase")):
        return Finding(ours="the head of a run had no vote", verdict=UNMEASURED, on="–")
    ours, theirs = ([100 * cell[arm]["head"] for cell in cells] for arm in ("ets", "rebase"))
    found, low, high = differences(ours, theirs)
    plain = [100 * fmean(cell[arm]["plain"] for cell in cells) for arm in ("ets", "rebase")]
    return Finding(
        ours=f"{found:+.1f} points: {fmean(ours):.1f} % against {fmean(theirs):.1f} % (majorities"
        f" of the same leaves: {plain[0]:.1f} % and {plain[1]:.1f} %)",
        n=f"{len(cells)} policies, votes of {ROWS} rows with {WIDTH} leaves each",
        interval=f"{low:+.1f} to {high:+.1f} points",
        on=f"{chains.ON} after {UPDATES} updates",
        verdict=SHOWN if low >= -_KEPT else NOT_SHOWN,
    )


CLAIM = Claim(
    name="ets-vote",
    system="ETS (arXiv 2502.13575)",
    says="a vote weighted by step scores keeps the accuracy of REBASE",
    tell=tell,
    seeds=range(5),
    asked={"updates": UPDATES, "settings": SETTINGS, "ets": ETS, "rows": ROWS, "cold": COLD},
    measure=measure,
)
