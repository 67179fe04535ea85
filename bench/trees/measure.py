"""Cells of the experiment `trees` in the protocol's order, and the table of those that are there.

`python -m bench.trees.measure`, once for each core, measures: tokens and accuracy do not depend on
load, and each process leaves out the cell that another measures. Every cell is kept raw, in
bench/kept/trees. `python -m bench trees` measures what is missing, and writes the table.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from bench.harness.cells import wanted as chosen_cells
from bench.harness.kept import FOLDER, Cell, Kept
from bench.harness.table import Result
from bench.trees import figures, protocol
from bench.trees.arms import WHOLE, Task
from bench.trees.protocol import OTHERS, RIVALS, SEEDS, Wanted

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


def run() -> Result:
    """Measure what is missing; return the table."""
    everything()
    return table()


def table() -> Result:
    """Return what the cells that are there say."""
    result, cells = Result("trees"), Cells(measures=False)
    _tuning(result, cells)
    rival = protocol.rival(cells.get)
    if rival is None:
        result.notes.append("the estimator of independent samples is not chosen yet")
        return result
    reported = list(protocol.reported(cells.get))
    for task in SEEDS:
        runs: dict[str, list[Cell]] = {}
        for wanted in reported:
            if wanted.task == task and (cell := cells.get(wanted)) is not None:
                runs.setdefault(wanted.arm.name, []).append(cell)
        if runs:
            _compared(result, task, rival, runs)
    return result


def _tuning(result: Result, cells: Cells) -> None:
    """Add each arm's best setting, with its geometric mean over the tuning seeds."""
    for name in (*RIVALS, *OTHERS):
        runs = [wanted for wanted in protocol.tuning(name) if cells.get(wanted) is not None]
        settings = {wanted.setting for wanted in runs}
        whole = [w for w in runs if sum(w.setting == other.setting for other in runs) > 1]
        best = protocol.best(whole, cells.get) if whole else None
        if best is not None:
            what = f"tuning {name}: {best[1].name}, of {len(settings)} settings"
            result.add(what, math.exp(best[0]), "tokens")


def _compared(result: Result, task: Task, rival: str, runs: Mapping[str, Sequence[Cell]]) -> None:
    """Add each arm's tokens on a task, and their ratio to those of independent samples."""
    title = f"K = {task.operations}, {'whole chain' if task.right == WHOLE else 'last digit'}"
    spent = {name: [protocol.spent(cell) for cell in found] for name, found in runs.items()}
    for name, found in runs.items():
        mean = math.exp(fmean(math.log(run.value) for run in spent[name]))
        censored = sum(run.censored for run in spent[name])
        accuracy = fmean(cell["points"][-1]["accuracy"] for cell in found)
        rest = f"{len(found)} seeds, {censored} of them not there; accuracy {accuracy:.3f}"
        result.add(f"{title}: {name}", mean, "tokens", rest)
    others = [name for name in runs if name != rival and len(runs[name]) > 1]
    if len(runs.get(rival, ())) < 2 or not others:
        return
    ratios = [figures.ratio(spent[rival], spent[name]) for name in others]
    adjusted = figures.holm([ratio.p for ratio in ratios])
    for name, ratio, p in zip(others, ratios, adjusted, strict=True):
        interval = f"{ratio.low:.2f} to {ratio.high:.2f}, p {p:.2g} after Holm"
        bound = "" if ratio.exact else "a bound; "
        result.add(f"{title}: {rival} over {name}", ratio.estimate, "x", bound + interval)


if __name__ == "__main__":
    everything()
