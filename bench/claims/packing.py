"""Tree training: packed over flattened paths, against overlap, as the bench `packing` recorded."""

from collections.abc import Sequence
from itertools import pairwise

from bench.claims.claim import NOT_SHOWN, SHOWN, Claim, Finding
from bench.claims.recorded import rows
from bench.harness.kept import Cell

_SAID = 3.9


def tell(cells: Sequence[Cell]) -> Finding:
    """Read the trees, from the least overlap to the greatest."""
    main, others = rows("packing"), rows("packing/shapes")
    trees = sorted(
        [(_number(r["tokens"]), _number(r["faster"]), r["share of the bound"]) for r in main]
        + [(_number(r["tokens"]), _number(r["faster"]), r["share of the bound"]) for r in others]
    )
    curve = ", ".join(f"{faster:g} at {overlap:g}" for overlap, faster, _ in trees)
    rises = all(a[1] < b[1] for a, b in pairwise(trees))
    shares = sorted(_number(share) for *_, share in trees)
    shown = rises and trees[-1][1] >= _SAID and trees[0][1] > 1
    return Finding(
        ours=f"times faster at times as many flat tokens: {curve}",
        n=f"{len(trees)} trees, medians of 3 runs",
        interval=f"{shares[0]:g} to {shares[-1]:g} % of the bound by count",
        on="random weights of SmolLM2-135M's shape, forward and backward, two cores",
        verdict=SHOWN if shown else NOT_SHOWN,
    )


def _number(text: str) -> float:
    return float(text.strip("*").split()[0])


CLAIM = Claim(
    name="packing",
    system="Tree Training (arXiv 2511.00413), KAT-Coder (arXiv 2510.18779)",
    says="packed trees train 3.9 to 6.2 times faster than flat paths, the more they overlap",
    tell=tell,
    bench="packing",
)
