"""ECHO whole against test-time RL on a majority's labels, from a policy that is often right.

The policy of `trees` believes wrong results more than right ones, and a vote would confirm them. So
both begin with one that was shown some right chains, whose last digits are right for about 8 of 10
prompts. At twice the rate, or with half the prompts an update, the votes themselves become wrong,
and both arms fall. A vote makes samples agree; it hardly changes the likeliest answer: so samples
are measured, as in the papers.
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
from bench.trees.process import InProcess

SHOWN, EPOCHS, SHOWN_RATE = 64, 8, 2e-4  # right chains that the first policy was shown
TOKENS = 100_000
WIDTH, GROUPS, TEMPERATURE, RATE = 16, 16, 0.8, 5e-5
ROWS, SAMPLES = 256, 4  # held-out rows, and answers of each
ASKED = Task(8, LAST)
BRANCHES: dict[str, Any] = {"width": WIDTH, "segment": 6, "min_depth": 1}
"""One chain of a tree branches, as published; the other leaves are sampled from the prompt."""
_VOTE = {
    "filter": [{"name": "majority", "settings": {"extract": "number", "take": "last"}}],
    "eval": {
        "samples": SAMPLES,
        "filter": [{"name": "number", "settings": {"answer": "last", "take": "last"}}],
    },
}
_ACTS = ("forks", "clip_fraction", "groups_skipped", "reward")
_SAID = 0.006


def arms() -> dict[str, Arm]:
    """Return both arms: they differ in ECHO's parts alone, so both pass over a batch twice."""
    ours = {"loss": "echo-clip", "epochs": 2}
    theirs = {"loss": "ppo-clip", "epochs": 2}
    return {
        "echo": _arm("echo", ours, {"policy": "echo", "settings": BRANCHES}),
        "ttrl": _arm("grpo", theirs, {"policy": "iid", "settings": {"width": WIDTH}}),
    }


def _arm(advantage: str, optimise: dict[str, Any], generate: dict[str, Any]) -> Arm:
    return Arm(
        width=WIDTH,
        groups=GROUPS,
        rate=RATE,
        advantage=advantage,
        generate={**generate, "temperature": TEMPERATURE},
        changes={**_VOTE, "optimise": optimise},
        task=ASKED,
    )


def measure(seed: int) -> Cell:
    """Return the courses of both, from one policy and without any answer."""
    with tempfile.TemporaryDirectory() as folder:
        first = begun(seed, Path(folder))
        return {
            name: chains.learnt(arm.process(seed, first), chains.nearest(TOKENS), _ACTS, sampled)
            for name, arm in arms().items()
        }


def sampled(process: InProcess) -> float:
    """Return the mean score of sampled answers."""
    return fmean(map(fmean, process.answers("sampled", ROWS)))


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
        on=f"{chains.ON} after {SHOWN} right chains; last digits, {ROWS} held-out"
        f" rows, {SAMPLES} samples each",
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
        "rate": RATE,
        "temperature": TEMPERATURE,
        "samples": [ROWS, SAMPLES],
        "branches": BRANCHES,
        "shown": [SHOWN, EPOCHS, SHOWN_RATE],
    },
    measure=measure,
)
