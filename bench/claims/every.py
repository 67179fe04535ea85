"""All claims, in the order of the page."""

import sys
from collections.abc import Sequence

from bench.claims import (
    april,
    ets,
    packing,
    redundancy,
    saving,
    throughput,
    without_figures,
    xrpo,
)
from bench.claims.claim import KEPT, Claim
from bench.claims.learning import arrol, dars_b, dots_replay, echo, ets_vote, latr, mc_grpo, otr
from bench.harness.kept import Kept

CLAIMS: Sequence[Claim] = (
    saving.CLAIM,
    throughput.CLAIM,
    packing.CLAIM,
    april.CLAIM,
    redundancy.CLAIM,
    arrol.CLAIM,
    xrpo.CLAIM,
    latr.CLAIM,
    ets.CLAIM,
    mc_grpo.CLAIM,
    dots_replay.CLAIM,
    echo.CLAIM,
    otr.CLAIM,
    dars_b.CLAIM,
    arrol.VOTE,
    ets_vote.CLAIM,
    *without_figures.CLAIMS,
)


def main(names: Sequence[str]) -> None:
    """Measure what is missing of the named claims, by default of all, and print their rows."""
    known = {claim.name: claim for claim in CLAIMS}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"there is no claim {unknown[0]!r}; known: {', '.join(known)}")
    kept = Kept(KEPT)
    for name in names or known:
        claim = known[name]
        found = claim.find(kept, measures=True)
        print(f"{name}: {claim.says}\n  {found.verdict}: {found.ours}")
        print(f"  n: {found.n}; interval: {found.interval}; on: {found.on}", flush=True)
