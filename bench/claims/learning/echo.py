"""ECHO whole against test-time RL on a majority's labels, from a policy that is often right.

The policy of `trees` believes wrong results more than right ones, and a vote would confirm them. So
both begin with one that was shown some right chains, from where the majority mostly is right.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.claims.claim import Claim, Finding, verdict
from bench.claims.learning import chains, expert
from bench.claims.learning.chains import Arm
from bench.harness.kept import Cell
from bench.trees.arms import LAST, Task
from bench.trees.figures import difference

SHOWN, EPOCHS, SHOWN_RATE = 16, 4, 4e-4  # right chains that the first policy was shown
TOKENS = 100_000
WIDTH, GROUPS = 16, 8
ASKED = Task(8, LAST)
BRANCHES: dict[str, Any] = {"width": WIDTH, "chains": 4, "segment": 6, "min_depth": 1}
_VOTE = {
    "filter": [{"name": "majority", "settings": {"extract": "number", "take": "last"}}],
    "eval": {"filter": [{"name": "number", "settings": {"answer": "last", "take": "last"}}]},
}
_ACTS = ("forks", "clip_fraction", "groups_skipped", "reward")
_SAID = 0.006


def arms() -> dict[str, Arm]:
    """Return both arms: they differ in ECHO's parts alone, so both pass over a batch twice."""
    ours = {"loss": "echo-clip", "epochs": 2}
    theirs = {"loss": "ppo-clip", "epochs": 2}
    generate = {"policy": "echo", "settings": BRANCHES, "temperature": 1.0}
    return {
        "echo": _arm("echo", ours, generate),
        "ttrl": _arm("grpo", theirs, None),
    }


def _arm(advantage: str, optimise: dict[str, Any], generate: dict[str, Any] | None) -> Arm:
    return Arm(
        width=WIDTH,
        groups=GROUPS,
        advantage=advantage,
        generate=generate,
        changes={**_VOTE, "optimise": optimise},
        task=ASKED,
    )


def measure(seed: int) -> Cell:
    """Return the courses of both, from one policy and without any answer."""
    with tempfile.TemporaryDirectory() as folder:
        first = begun(seed, Path(folder))
        return {
            name: chains.learnt(arm.process(seed, first), chains.nearest(TOKENS), _ACTS)
            for name, arm in arms().items()
        }


def begun(seed: int, folder: Path) -> Path:
    """Return the policy that both begin with, made in a folder."""
    shown = Arm(width=1, rate=SHOWN_RATE, changes={"resources": {"threads": 1}}).recipe(seed)
    to = folder / "shown"
    expert.taught(shown, expert.rows(shown, SHOWN), EPOCHS, to)
    return to


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare accuracy after as many sampled tokens."""
    ours, theirs = ([cell[arm]["after"] for cell in cells] for arm in ("echo", "ttrl"))
    found, low, high = difference(ours, theirs)
    before = fmean(cell["echo"]["before"] for cell in cells)
    forks, clipped = (_each(cells, name) for name in ("forks", "clip_fraction"))
    return Finding(
        ours=f"{100 * found:+.1f} points: {100 * fmean(ours):.1f} % against"
        f" {100 * fmean(theirs):.1f} %, from {100 * before:.1f} %; {forks:.0f} forks an update,"
        f" {100 * clipped:.1f} % of tokens clipped",
        n=f"{len(cells)} seeds a side, about {TOKENS:,} sampled tokens each",
        interval=f"{100 * low:+.1f} to {100 * high:+.1f} points",
        on=f"{chains.ON} after {SHOWN} right chains; last digits, 512 held-out rows, greedy",
        verdict=verdict(low, high, _SAID, none=0.0),
    )


def _each(cells: Sequence[Cell], name: str) -> float:
    """Return what ECHO does an update, in the mean."""
    return fmean(cell["echo"]["acts"][name] / cell["echo"]["updates"] for cell in cells)


CLAIM = Claim(
    name="echo",
    system="ECHO (arXiv 2602.02150)",
    says="+0.6 to +12.4 points over test-time RL on a majority's labels",
    tell=tell,
    seeds=range(3),
    asked={
        "tokens": TOKENS,
        "groups": GROUPS,
        "rate": chains.RATE,
        "branches": BRANCHES,
        "shown": [SHOWN, EPOCHS, SHOWN_RATE],
    },
    measure=measure,
)
