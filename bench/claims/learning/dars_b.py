"""DARS-B: Pass@1 and Pass@K after as many sampled tokens, with large batches and with small ones.

Both give more samples to prompts with few right answers; DARS-B sees a large batch whole and twice.
"""

from collections.abc import Sequence
from statistics import fmean

from bench.claims.claim import NOT_SHOWN, SHOWN, Claim, Finding
from bench.claims.learning import chains
from bench.claims.learning.chains import Arm
from bench.harness.kept import Cell
from bench.trees.figures import difference
from bench.trees.process import InProcess

TOKENS = 200_000
WIDTH, MOST, PASS, ROWS = 8, 32, 16, 128
SMALL, LARGE = 8, 32  # prompts of an update
RATE = 4e-4
_ACTS = ("leaves", "optimizer_steps", "groups_skipped")
Both = tuple[float, float]


def arms() -> dict[str, Arm]:
    """Return DARS with large batches, and DARS."""
    whole_and_twice = {"epochs": 2, "minibatches": 1}
    return {"dars-b": _arm(LARGE, whole_and_twice), "dars": _arm(SMALL, {})}


def _arm(groups: int, optimise: dict[str, int]) -> Arm:
    settings = {"width": WIDTH, "max_width": MOST, "schedule": "equal"}
    changes = {
        "optimise": {"advantage_settings": {"scale": "none"}, "loss": "ppo-clip", **optimise},
        "eval": {"samples": PASS},
    }
    return Arm(
        width=WIDTH,
        groups=groups,
        rate=RATE,
        generate={"policy": "dars", "settings": settings},
        changes=changes,
    )


def measure(seed: int) -> Cell:
    """Return the courses of both."""
    return {name: _course(arm.process(seed)) for name, arm in arms().items()}


def _course(process: InProcess) -> Cell:
    before = _passes(process)
    course = chains.learnt(process, chains.nearest(TOKENS), _ACTS)
    first = WIDTH * process.recipe.control.groups_per_batch * course["updates"]
    passes = {"before": before, "after": _passes(process)}
    return {**course, "first_stage": first, "passes": passes}


def _passes(process: InProcess) -> Both:
    """Return Pass@1 and Pass@K of sampled answers."""
    answers = process.answers("sampled", ROWS)
    return fmean(map(fmean, answers)), fmean(map(max, answers))


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare both; the claim is shown if both intervals lie above 0."""
    found = [_compared(cells, place) for place in (0, 1)]
    first, all_of = found
    more = fmean(cell["dars-b"]["leaves"] / cell["dars-b"]["first_stage"] - 1 for cell in cells)
    return Finding(
        ours=f"Pass@1 {_said(cells, 0)}; Pass@{PASS} {_said(cells, 1)}; hard prompts add"
        f" {100 * more:.0f} % to the samples",
        n=f"{len(cells)} seeds a side, about {TOKENS:,} sampled tokens, {LARGE} prompts an"
        f" update against {SMALL}",
        interval=f"{_interval(first)} (Pass@1), {_interval(all_of)} (Pass@{PASS}) points",
        on=f"{chains.ON}, {ROWS} held-out rows, {PASS} samples each",
        verdict=SHOWN if all(low > 0 for _, low, _ in found) else NOT_SHOWN,
    )


def _compared(cells: Sequence[Cell], place: int) -> tuple[float, float, float]:
    large, small = ([c[a]["passes"]["after"][place] for c in cells] for a in ("dars-b", "dars"))
    return difference(large, small)


def _said(cells: Sequence[Cell], place: int) -> str:
    large, small = (
        fmean(c[a]["passes"]["after"][place] for c in cells) for a in ("dars-b", "dars")
    )
    before = fmean(cell["dars"]["passes"]["before"][place] for cell in cells)
    estimate = 100 * (large - small)
    return (
        f"{estimate:+.1f} points ({100 * large:.1f} % against {100 * small:.1f} %, from"
        f" {100 * before:.1f} %)"
    )


def _interval(found: tuple[float, float, float]) -> str:
    _, low, high = found
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


CLAIM = Claim(
    name="dars-b",
    system="DARS-B (arXiv 2508.13755)",
    says="Pass@1 and Pass@K rise with large batches",
    tell=tell,
    seeds=range(3),
    asked={
        "tokens": TOKENS,
        "groups": [LARGE, SMALL],
        "widths": [WIDTH, MOST],
        "rate": RATE,
        "passes": [ROWS, PASS],
    },
    measure=measure,
)
