"""ARRoL: accuracy at equal sampled tokens, as the bench `equal` recorded."""

from collections.abc import Sequence

from bench.claims.claim import Claim, Finding, verdict
from bench.claims.recorded import row, welch
from bench.harness.kept import Cell

_RUNS, _SAID = 3, 2.3  # points
_AT = "at 4,000"


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare with independent samples."""
    ours, theirs = row("equal", "`arrol`")[_AT], row("equal", "quick start")[_AT]
    difference, low, high = welch(ours, theirs, _RUNS)
    return Finding(
        ours=f"{difference:+.1f} points of held-out accuracy",
        n=f"{_RUNS} seeds a side",
        interval=f"{low:+.1f} to {high:+.1f}",
        on="sums and products of at most 8 tokens, SmolLM2-135M, 4,000 sampled tokens",
        verdict=verdict(low, high, _SAID, none=0.0),
    )


CLAIM = Claim(
    name="arrol",
    system="ARRoL (arXiv 2603.24840)",
    says="+2.3 to +3.0 points of accuracy at half of the rollouts",
    tell=tell,
    bench="equal",
)
