"""The table of the experiment `sums`: ratios of what two arms spent, and what each spent."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from bench.harness.kept import Cell
from bench.harness.table import Result
from bench.sums import protocol
from bench.sums.protocol import RIVAL, TREES, Get
from bench.trees import choice, figures
from bench.trees.arms import Setting
from bench.trees.table import end, shape

LEAST = 1
COMPARED = {"sampled": "sampled tokens", "processor_s": "processor seconds"}
"""What is compared. The clock's seconds of an update are in none of the cells."""
SPENT = {
    **COMPARED,
    "prefilled": "prefilled tokens",
    "trained": "trained tokens",
    "updates": "updates",
    "positions": "decode positions",
}


def table(get: Get) -> Result:
    """Return what the cells that are there say."""
    result = Result("sums")
    for arm in (RIVAL, *TREES):
        result.notes += _tuned(arm, get)
    runs: dict[str, list[Cell]] = {}
    settings: dict[str, Setting] = {}
    for wanted in (*protocol.reported(get), *protocol.others(get)):
        cell = get(wanted)
        if cell is not None:
            runs.setdefault(wanted.arm.name, []).append(cell)
            settings[wanted.arm.name] = wanted.setting
    for name in runs:
        if name != RIVAL and min(len(runs[name]), len(runs.get(RIVAL, []))) > 1:
            _compare(result, name, runs, bar=name == protocol.tree(get))
    for name, cells in runs.items():
        _spent(result, f"{name}, {shape(settings[name])}", cells)
    return result


def _compare(result: Result, name: str, runs: Mapping[str, Sequence[Cell]], *, bar: bool) -> None:
    """Add the ratios of what the rival and an arm spent until they were there."""
    for what, words in COMPARED.items():
        first, second = ([choice.spent(c, what) for c in runs[arm]] for arm in (RIVAL, name))
        found = figures.ratio(first, second)
        bound = "" if found.exact else "; a bound, as a run was not there"
        spread = f"{found.low:.2f} to {found.high:.2f}, p {found.p:.2g}{bound}"
        of = f"{words} of {RIVAL} over those of {name}"
        result.add(of, found.estimate, "times", spread)
        if bar:
            result.add(f"{of}, lower bound", found.low, "times", f"above {LEAST}")


def _spent(result: Result, name: str, cells: Sequence[Cell]) -> None:
    """Add what an arm spent until it was there: means over runs, geometric ones of what is
    compared.
    """
    there = sum(not choice.spent(cell).censored for cell in cells)
    result.add(f"{name}: runs that got there", there, "runs", f"of {len(cells)}")
    ends = [end(cell) for cell in cells]
    for what, words in SPENT.items():
        values = [one[what] for one in ends]
        mean = math.exp(fmean(map(math.log, values))) if what in COMPARED else fmean(values)
        result.add(f"{name}: {words}", mean, "", f"{min(values):,.0f} to {max(values):,.0f}")
    last = [100 * cell["points"][-1]["accuracy"] for cell in cells]
    spread = f"{min(last):.1f} to {max(last):.1f}"
    result.add(f"{name}: accuracy at the end", fmean(last), "%", spread)


def _tuned(arm: str, get: Get) -> list[str]:
    """Return an arm's best setting, with its geometric mean over the tuning seeds."""
    found = protocol.tuned(arm, get)
    if found is None:
        return []
    rates = ", ".join(f"{rate:g}" for rate in protocol.TRIED[arm])
    return [f"tuned {arm}: {shape(found[1])}, {math.exp(found[0]):,.0f} tokens; tried: {rates}"]
