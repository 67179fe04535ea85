"""OTR: accuracy after an expert's rows learnt by one-token rollouts, against plain SFT on them."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bench.claims.claim import Claim, Finding, verdict
from bench.claims.learning import chains, expert
from bench.claims.learning.chains import Arm
from bench.harness.kept import Cell
from bench.trees.arms import Task
from bench.trees.figures import difference

ROWS, EPOCHS = 64, 8
FAR = Task(16)  # chains that no row shows
FAR_ROWS = 256
RATES = {"otr": 1e-3, "sft": 2e-4}
"""Each arm's best of 1e-4, 2e-4, 4e-4, 1e-3 and 2e-3 on seed 100; of these 2e-3 for OTR alone and
1e-4 for SFT alone, which lie beyond their best."""
SETTINGS = {"kappa": 1.3, "beta": -0.1}


def arms() -> dict[str, Arm]:
    """Return both arms."""
    labels = {"optimise": {"advantage": "otr", "loss": "otr", "loss_settings": SETTINGS}}
    one = {"resources": {"threads": 1}}
    return {
        "otr": Arm(width=1, rate=RATES["otr"], changes=labels | one),
        "sft": Arm(width=1, rate=RATES["sft"], changes=one),
    }


def measure(seed: int) -> Cell:
    """Return what both keep and learn of the same rows."""
    before = _tested(seed, None)
    return {"before": before, **{name: _learnt(arm, seed) for name, arm in arms().items()}}


def _learnt(arm: Arm, seed: int) -> Cell:
    recipe = arm.recipe(seed)
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "taught"
        record = expert.taught(recipe, expert.rows(recipe, ROWS), EPOCHS, to)
        tested = _tested(seed, to)
    told = {name: record[name] for name in ("objective", "steps", "trained_tokens", "loss")}
    return {**tested, **told}


def _tested(seed: int, model: Path | None) -> Cell:
    """Return the answers of a policy: of held-out rows, one by one, and of longer chains."""
    near = Arm(width=1).process(seed, model).answers("greedy")
    far = Arm(width=1, task=FAR).process(seed, model).accuracy(FAR_ROWS)
    return {"right": [answer for answers in near for answer in answers], "far": far}


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare held-out accuracy; say what both do on longer chains, and what they unlearn."""
    ours, plain = ([fmean(cell[arm]["right"]) for cell in cells] for arm in ("otr", "sft"))
    found, low, high = difference(ours, plain)
    shown = "; ".join(_said(name, cells) for name in ("otr", "sft"))
    before = fmean(fmean(cell["before"]["right"]) for cell in cells)
    return Finding(
        ours=f"{100 * found:+.1f} points of held-out accuracy, from {100 * before:.1f} %: {shown}",
        n=f"{len(cells)} seeds a side, {EPOCHS} epochs of {ROWS} rows",
        interval=f"{100 * low:+.1f} to {100 * high:+.1f} points",
        on=f"{chains.ON}, 512 held-out rows, greedy; right chains as the expert's",
        verdict=verdict(low, high, 0.0, none=0.0),
    )


def _said(arm: str, cells: Sequence[Cell]) -> str:
    right = fmean(fmean(cell[arm]["right"]) for cell in cells)
    far = fmean(cell[arm]["far"] for cell in cells)
    kept = fmean(_kept(cell["before"]["right"], cell[arm]["right"]) for cell in cells)
    return (
        f"`{arm}` {100 * right:.1f} %, {100 * far:.1f} % of chains of {FAR.operations}, and keeps"
        f" {100 * kept:.0f} % of what was right"
    )


def _kept(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the share of rows that stay right, of those that were."""
    were = [now for then, now in zip(before, after, strict=True) if then]
    return fmean(were) if were else 1.0


CLAIM = Claim(
    name="otr",
    system="OTR (arXiv 2509.26313)",
    says="better than SFT on expert rows",
    tell=tell,
    seeds=range(3),
    asked={"rows": ROWS, "epochs": EPOCHS, "rates": RATES, "settings": SETTINGS},
    measure=measure,
)
