"""ETS: memory of a depth's candidates against REBASE, on the steps of the bench `pruning`."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from bench import pruning
from bench.claims.claim import Claim, Finding, verdict
from bench.claims.intervals import Pairs, pairs
from bench.harness.kept import Cell

LAMBDA_D: Mapping[int, float] = {16: 1.5, 64: 1.4}
"""λ_d by width, as published."""
TEMPERATURES = (1.0, 0.2)  # of REBASE's shares: the bench's own, and the published one
_REBASE = {"lambda_b": 0.0, "lambda_d": 0.0}
_SAID = 1.8


def measure(seed: int) -> Cell:
    """Return unique tokens of the candidates' paths and kinds that go on, by case and arm."""
    return {
        _case(width, temperature): {
            arm: _arm(seed, {"temperature": temperature, **changed}, width)
            for arm, changed in (("ets", {"lambda_d": bonus}), ("rebase", _REBASE))
        }
        for width, bonus in LAMBDA_D.items()
        for temperature in TEMPERATURES
    }


def _case(width: int, temperature: float) -> str:
    return f"{width} at T = {temperature:g}"


def _arm(seed: int, changed: Mapping[str, float], width: int) -> dict[str, float]:
    found = pruning.searched(seed, changed, width)
    return {"kv": found.kv_tokens, "kinds": fmean(found.kinds) if found.kinds else 0.0}


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare the case with the greatest saving; say all."""
    found = {case: _ratio(cells, case) for case in cells[0] if " at T = " in case}
    best = max(found, key=lambda case: found[case].estimate)
    every = ", ".join(f"{r.estimate:.2f} (width {case})" for case, r in found.items())
    kinds = [fmean(c[best][arm]["kinds"] for c in cells) for arm in ("ets", "rebase")]
    return Finding(
        ours=f"times less: {every}; kinds of steps that go on {kinds[0]:.2f} against"
        f" {kinds[1]:.2f}",
        n=f"{len(cells)} trees a side",
        interval=f"{found[best].low:.2f} to {found[best].high:.2f} (width {best})",
        on="scripted engine, steps of three kinds, a head that knows them",
        verdict=verdict(found[best].low, found[best].high, _SAID),
    )


def _ratio(cells: Sequence[Cell], case: str) -> Pairs:
    rebase, ets = ([cell[case][arm]["kv"] for cell in cells] for arm in ("rebase", "ets"))
    return pairs(rebase, ets)


CLAIM = Claim(
    name="ets",
    system="ETS (arXiv 2502.13575)",
    says="1.8 times less KV on average than REBASE at equal width",
    tell=tell,
    seeds=range(10),
    asked={"lambda_d": {str(k): v for k, v in LAMBDA_D.items()}, "temperatures": TEMPERATURES},
    measure=measure,
)
