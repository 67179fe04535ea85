"""Seconds of the rival and of the trees that answer for the bars, on a machine that rests.

`python -m bench.trees.quiet` runs one after the other, seed by seed and with one thread of torch;
nothing else may run meanwhile. The cells are kept in bench/kept/trees-quiet, with the load of the
machine before and after.
"""

from collections.abc import Iterator

from bench.harness.kept import FOLDER, Cell
from bench.harness.record import NO_TARGET, Headline
from bench.harness.runs import Runs
from bench.trees import choice, figures, protocol
from bench.trees.arms import ARMS
from bench.trees.protocol import MAIN, Get, Wanted
from bench.trees.table import title_of

SEEDS = range(3)
WHAT = {"seconds": "seconds of updates", "processor_s": "processor seconds"}


def wanted(get: Get) -> Iterator[Wanted]:
    """Yield the runs, the two arms of a seed one after the other, if their settings are chosen.

    get: the cells of the experiment
    """
    names = [protocol.rival(get), protocol.tree(get)]
    sides = [(name, protocol.tuned(name, get)) for name in names if name is not None]
    for seed in SEEDS:
        for name, setting in sides if seed % 2 == 0 else reversed(sides):
            if setting is not None:
                yield Wanted(ARMS[name], MAIN, setting, seed)


def said(get: Get, quiet: Get) -> tuple[list[str], list[Headline]]:
    """Return what the kept runs say: a note, and figures for the overview; nothing without two.

    get: the cells of the experiment
    quiet: those of a machine that rests
    """
    cells: dict[str, list[Cell]] = {}
    for one in wanted(get):
        cell = quiet(one)
        if cell is not None:
            cells.setdefault(one.arm.name, []).append(cell)
    if len(cells) < 2 or min(map(len, cells.values())) < 2:
        return [], []
    (first, theirs), (second, ours) = cells.items()
    ratios, heads = list[str](), list[Headline]()
    for what, words in WHAT.items():
        slow, fast = ([choice.spent(cell, what) for cell in side] for side in (theirs, ours))
        found = figures.ratio(slow, fast)
        bound = "" if found.exact else "; a bound, as a run was not there"
        figure = f"{found.estimate:.2f} ({found.low:.2f} to {found.high:.2f}{bound})"
        ratios.append(f"{words} of {first} over those of {second}: {figure}")
        about = f"{title_of(MAIN)}, machine at rest: {words} of {first} over those of {second}"
        heads.append(Headline(what=about, figure=figure, target=NO_TARGET, met=None))
    loads = [load for side in (theirs, ours) for cell in side for load in cell["load"]]
    least = min(len(theirs), len(ours))
    between = f"load {min(loads):.1f} to {max(loads):.1f}"
    return [f"one run at a time, {least} seeds, {between}: {'; '.join(ratios)}"], heads


def cells(*, measures: bool) -> Runs:
    """Return these cells; with `measures`, missing ones are measured now."""
    return Runs(FOLDER / "trees-quiet", (), measures=measures)


def main() -> None:
    """Measure what is missing."""
    import torch

    torch.set_num_threads(1)
    measured = cells(measures=True)
    for one in wanted(Runs(FOLDER / "trees", (), measures=False).get):
        measured.get(one)


if __name__ == "__main__":
    main()
