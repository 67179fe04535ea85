"""TreePO: trajectories and tokens a second of its trees, against independent samples.

Both sample in turns in one process on one thread, on the policy of the experiment `trees`.
"""

from collections.abc import Sequence

from bench.claims.claim import NOT_SHOWN, SHOWN, Claim, Finding, verdict
from bench.claims.intervals import Pairs, pairs
from bench.harness.kept import Cell
from bench.trees import arms
from bench.trees.arms import ARMS, Setting, Task
from bench.trees.process import InProcess

TASK, SETTING = Task(16), Setting(8, 16, 1e-4)
_SAID = {"leaves": 1.40, "sampled": 1.35}


def measure(seed: int) -> Cell:
    """Return leaves and path tokens a second of both; the first step of either is not timed."""
    from bench.claims.learning.chains import policy_there

    policy_there()
    sides = {
        name: InProcess(arms.recipe(ARMS[name], TASK, SETTING, seed))
        for name in ("treepo", "iid-grpo")
    }
    counts = {}
    for number in range(2):
        counts = {name: side.sample(number) for name, side in sides.items()}
    return {
        name: {"leaves": c.leaves / c.growing_s, "sampled": c.sampled / c.growing_s}
        for name, c in counts.items()
    }


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare trajectories a second, and sampled tokens a second; both must be shown."""
    leaves, sampled = _ratio(cells, "leaves"), _ratio(cells, "sampled")
    both = [
        verdict(found.low, found.high, _SAID[what])
        for what, found in (("leaves", leaves), ("sampled", sampled))
    ]
    return Finding(
        ours=f"{leaves.estimate:.2f} times the trajectories a second,"
        f" {sampled.estimate:.2f} times the sampled tokens",
        n=f"{len(cells)} pairs",
        interval=f"{leaves.low:.2f} to {leaves.high:.2f} (trajectories), {sampled.low:.2f} to"
        f" {sampled.high:.2f} (tokens)",
        on="8 groups of 16 leaves of 96 tokens, the small policy of `trees`, one thread",
        verdict=SHOWN if both == [SHOWN, SHOWN] else NOT_SHOWN,
    )


def _ratio(cells: Sequence[Cell], what: str) -> Pairs:
    ours, theirs = ([cell[arm][what] for cell in cells] for arm in ("treepo", "iid-grpo"))
    return pairs(ours, theirs)


CLAIM = Claim(
    name="treepo-throughput",
    system="TreePO (arXiv 2508.17445)",
    says="+40 % trajectories and +35 % tokens a second",
    tell=tell,
    seeds=range(6),
    asked={"task": TASK.tokens, "groups": SETTING.groups, "leaves": SETTING.leaves},
    measure=measure,
)
