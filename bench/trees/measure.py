"""Cells of the experiment `trees` in the protocol's order; then what those that are there say.

`python -m bench.trees.measure`, once for each core: tokens and accuracy do not depend on load, and
each process leaves out the cell that another measures. Every cell is kept raw, in bench/kept/trees.
"""

import os
from statistics import fmean

from bench.harness.cells import wanted as chosen_cells
from bench.harness.kept import FOLDER, Cell, Kept
from bench.trees import figures, protocol
from bench.trees.arms import Task
from bench.trees.figures import Spent
from bench.trees.protocol import MAIN, OTHERS, RIVALS, SEEDS, Wanted

KEPT = FOLDER / "trees"


class Cells:
    """The cells that are kept; with `measures`, missing ones are measured now."""

    def __init__(self, *, measures: bool) -> None:
        self._kept, self._measures = Kept(KEPT, chosen_cells()), measures

    def get(self, wanted: Wanted) -> Cell | None:
        """Return a cell; None if it is missing, and not to be measured here and now."""
        if not self._measures and not self._kept.path(wanted.name).exists():
            return None
        return self._kept.get(wanted.name, wanted.asked(), wanted.measure)


def everything() -> None:
    """Measure what is missing, in the protocol's order."""
    cells, there = Cells(measures=True), Cells(measures=False)
    for name in RIVALS:
        for wanted in protocol.first_look(name):
            cells.get(wanted)
    rival = protocol.rival(there.get)
    for name in (rival, *OTHERS) if rival else OTHERS:
        for wanted in protocol.tuning(name):
            cells.get(wanted)
    for wanted in protocol.reported(there.get):
        cells.get(wanted)


def tuning_table() -> list[str]:
    """Return a line for each setting that was tried."""
    cells, lines = Cells(measures=False), list[str]()
    for name in (*RIVALS, *OTHERS):
        for wanted in protocol.tuning(name):
            cell = cells.get(wanted)
            if cell is not None:
                lines.append(f"{wanted.name}: {_shown(protocol.spent(cell), cell)}")
        best = protocol.tuned(name, cells.get)
        lines.append(f"{name}: {best.name if best else 'not whole'}")
    return lines


def _shown(spent: Spent, cell: Cell) -> str:
    last = cell["points"][-1]
    at = f"more than {spent.value:,.0f}" if spent.censored else f"{spent.value:,.0f}"
    return f"{at} tokens, {last['accuracy']:.3f} after {last['updates']} updates"


def compared(task: Task = MAIN) -> list[str]:
    """Return a line for each arm that is reported on a task."""
    cells = Cells(measures=False)
    rival = protocol.rival(cells.get)
    if rival is None:
        return ["the rival is not chosen yet"]
    runs: dict[str, list[Cell]] = {}
    for wanted in protocol.reported(cells.get):
        cell = cells.get(wanted) if wanted.task == task else None
        if cell is not None:
            runs.setdefault(wanted.arm.name, []).append(cell)
    lines = [f"{task}: of {len(SEEDS[task])} seeds"]
    first = [protocol.spent(cell) for cell in runs.get(rival, [])]
    for name, found in runs.items():
        spent = [protocol.spent(cell) for cell in found]
        accuracy = fmean(cell["points"][-1]["accuracy"] for cell in found)
        line = f"{name} ({len(found)}): accuracy at the end {accuracy:.3f}"
        if name != rival and len(spent) > 1 and len(first) > 1:
            ratio = figures.ratio(first, spent)
            bound = "" if ratio.exact else ", a bound"
            line += f"; {ratio.estimate:.2f} ({ratio.low:.2f} to {ratio.high:.2f}{bound})"
        lines.append(line)
    return lines


def main() -> None:
    """Measure, then print what is there."""
    if not os.environ.get("BENCH_ONLY_SHOW"):
        everything()
    for line in (*tuning_table(), *compared()):
        print(line)


if __name__ == "__main__":
    main()
