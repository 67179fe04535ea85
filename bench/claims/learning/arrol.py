"""ARRoL: accuracy at equal sampled tokens, and what its head adds to a vote.

Of 16 rollouts a prompt half are stopped half-way: as many tokens as 12 whole ones. The rival keeps
those 12. Then held-out rows vote with 16 answers each, none of them stopped.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from bench.claims.claim import UNMEASURED, Claim, Finding, verdict
from bench.claims.intervals import differences
from bench.claims.learning import chains, heads
from bench.claims.learning.chains import GROUPS, TASK, Arm
from bench.claims.learning.heads import COLD, ROWS, WIDTH
from bench.harness.kept import Cell
from bench.trees import ballots
from bench.trees.figures import difference
from bench.trees.process import Counts

UPDATES = 12
SETTINGS: dict[str, Any] = {
    "width": WIDTH,
    "detect": TASK.tokens // 2,
    "keep": 0.5,
    "share": 0.5,
}
RIVAL_WIDTH = WIDTH * 3 // 4  # whole rollouts of as many tokens
_CHANGES = heads.changes({"keep": 1.0})  # no answer of a vote is stopped
_ACTS = ("ends_discarded",)
_SAID, _SAID_OF_VOTES = 2.3, 8.3  # points


def arm() -> Arm:
    """Return ARRoL, whose held-out rows vote."""
    return Arm(
        width=WIDTH,
        groups=GROUPS,
        generate={"policy": "arrol", "settings": SETTINGS},
        changes=_CHANGES,
    )


def measure(seed: int) -> Cell:
    """Return both courses, and the votes of ARRoL's last policy."""
    pruned, whole = arm(), Arm(width=RIVAL_WIDTH, groups=GROUPS)
    process = pruned.process(seed)
    ours = chains.learnt(process, _enough, _ACTS)
    votes = ballots.held(process, pruned.recipe(seed), ROWS)
    theirs = chains.learnt(whole.process(seed), _enough)
    return {"arrol": {**ours, **asdict(votes)}, "iid": theirs}


def _enough(updates: int, _: Counts) -> bool:
    return updates >= UPDATES


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare accuracy of greedy answers."""
    ours, theirs = ([100 * cell[arm]["after"] for cell in cells] for arm in ("arrol", "iid"))
    found, low, high = difference(ours, theirs)
    left = fmean(cell["arrol"]["acts"]["ends_discarded"] / UPDATES for cell in cells)
    tokens = [fmean(cell[arm]["sampled"] for cell in cells) for arm in ("arrol", "iid")]
    return Finding(
        ours=f"{found:+.1f} points of held-out accuracy: {fmean(ours):.1f} % after"
        f" {tokens[0]:,.0f} sampled tokens against {fmean(theirs):.1f} % after {tokens[1]:,.0f};"
        f" {left:.0f} of {GROUPS * WIDTH} rollouts stopped an update",
        n=f"{len(cells)} seeds a side, {UPDATES} updates of {GROUPS} prompts",
        interval=f"{low:+.1f} to {high:+.1f} points",
        on=f"{chains.ON}, 512 held-out rows, greedy",
        verdict=verdict(low, high, _SAID, none=0.0),
    )


def tell_votes(cells: Sequence[Cell]) -> Finding:
    """Compare the head's vote with the plain one, row by row of one policy."""
    runs = [cell["arrol"] for cell in cells]
    if any(math.isnan(run["head"]) for run in runs):
        return Finding(ours="the head of a run had no vote", verdict=UNMEASURED, on="–")
    head, plain = ([100 * run[vote] for run in runs] for vote in ("head", "plain"))
    found, low, high = differences(head, plain)
    leaf = 100 * fmean(run["leaf"] for run in runs)
    return Finding(
        ours=f"{found:+.1f} points: {fmean(head):.1f} % by the head's vote, {fmean(plain):.1f} % by"
        f" the majority's, {leaf:.1f} % of single answers",
        n=f"{len(runs)} seeds, votes of {ROWS} rows with {WIDTH} answers each",
        interval=f"{low:+.1f} to {high:+.1f} points",
        on=f"{chains.ON} after {UPDATES} updates",
        verdict=verdict(low, high, _SAID_OF_VOTES, none=0.0),
    )


_ASKED = {
    "updates": UPDATES,
    "settings": SETTINGS,
    "votes": _CHANGES["eval"]["votes"],
    "rows": ROWS,
    "cold": COLD,
}
CLAIM = Claim(
    name="arrol",
    system="ARRoL (arXiv 2603.24840)",
    says="+2.3 to +3.0 points of accuracy at half of the rollouts",
    tell=tell,
    seeds=range(5),
    asked=_ASKED,
    measure=measure,
)
VOTE = Claim(
    name="arrol-vote",
    cells=CLAIM.name,
    system=CLAIM.system,
    says="up to +8.3 points by votes that its head weights",
    tell=tell_votes,
    seeds=CLAIM.seeds,
    asked=_ASKED,
    measure=measure,
)
