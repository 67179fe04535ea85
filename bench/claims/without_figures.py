"""Claims without a measurement, and what one would take."""

from collections.abc import Sequence

from bench.claims.claim import NO_COMPARISON, Claim, Finding, Tell
from bench.harness.kept import Cell


def _said(ours: str, verdict: str) -> Tell:
    def tell(cells: Sequence[Cell]) -> Finding:
        return Finding(ours=ours, verdict=verdict, on="–")

    return tell


CLAIMS = (
    Claim(
        name="scope",
        system="SCOPE (arXiv 2602.24110)",
        says="diversity +13.5 % against replacing whole answers",
        tell=_said("a right chain has one text, so its right answers cannot differ", NO_COMPARISON),
    ),
    Claim(
        name="dart",
        system="DART-GUI (arXiv 2509.23866)",
        says="42.1 % on OSWorld, five levers together",
        tell=_said("there is no desktop environment here; the levers act", NO_COMPARISON),
    ),
)
