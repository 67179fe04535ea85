"""TreePO: tokens saved at equal leaves, as the bench `saving` recorded."""

from collections.abc import Sequence

from bench.claims.claim import NOT_SHOWN, SHOWN, Claim, Finding
from bench.claims.recorded import row
from bench.harness.kept import Cell

_SAID = 40.0
_CASES = {
    "paths end after about 4 segments": "W = 16, depth 14, paths end after about 4",
    "about 6": "the same, about 6",
    "all 14": "W = 16, 14 of 14",
}


def tell(cells: Sequence[Cell]) -> Finding:
    """Read the share saved by where paths end."""
    saved = {name: float(row("saving", of)["saved"].split()[0]) for name, of in _CASES.items()}
    most, *others = saved.items()
    rest = ", ".join(f"{share:g} % ({name})" for name, share in others)
    return Finding(
        ours=f"{most[1]:g} % ({most[0]}), {rest}; the closed form bounds it",
        n="8 trees a case",
        on="scripted engine, W = 16, depth 14, d = 2",
        verdict=SHOWN if most[1] >= _SAID else NOT_SHOWN,
    )


CLAIM = Claim(
    name="treepo-tokens",
    system="TreePO (arXiv 2508.17445)",
    says="up to 40 % of sampling saved at equal leaves",
    tell=tell,
    bench="saving",
)
