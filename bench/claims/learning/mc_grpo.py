"""MC-GRPO: accuracy with two answers a prompt that carry gradient, against eight."""

from collections.abc import Sequence
from statistics import fmean

from bench.claims.claim import NOT_SHOWN, SHOWN, Claim, Finding
from bench.claims.learning import chains
from bench.claims.learning.chains import Arm
from bench.harness.kept import Cell
from bench.trees.figures import difference

UPDATES, FEW, MANY = 30, 2, 8
_SAID = 0.01


def measure(seed: int) -> Cell:
    """Return the courses of both; one more answer a prompt is the median's."""
    arms = {
        "few": Arm(width=FEW + 1, advantage="mc-grpo"),
        "many": Arm(width=MANY + 1, advantage="mc-grpo"),
    }
    return {
        name: chains.learnt(arm.process(seed), lambda updates, _: updates >= UPDATES)
        for name, arm in arms.items()
    }


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare accuracy after as many updates."""
    few, many = ([cell[arm]["after"] for cell in cells] for arm in ("few", "many"))
    found, low, high = difference(few, many)
    before = fmean(cell["few"]["before"] for cell in cells)
    return Finding(
        ours=f"{100 * found:+.1f} points: {100 * fmean(few):.1f} % against"
        f" {100 * fmean(many):.1f} %, from {100 * before:.1f} %",
        n=f"{len(cells)} seeds a side, {UPDATES} updates of {chains.GROUPS} prompts",
        interval=f"{100 * low:+.1f} to {100 * high:+.1f} points",
        on=f"{chains.ON}, 512 held-out rows, greedy",
        verdict=SHOWN if low >= -_SAID else NOT_SHOWN,
    )


CLAIM = Claim(
    name="mc-grpo",
    system="MC-GRPO (arXiv 2601.22582)",
    says="two answers a prompt (G = 2) end within 1 point of eight (G = 8)",
    tell=tell,
    seeds=range(3),
    asked={"updates": UPDATES, "few": FEW, "many": MANY, "rate": chains.RATE},
    measure=measure,
)
