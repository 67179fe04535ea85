"""Cells of the experiment `sums` in the protocol's order.

`python -m bench.sums.measure`, once for each core, measures; every cell is kept raw, in
bench/kept/sums. `python -m bench sums` measures what is missing, and writes the table.
"""

from bench.harness.cells import wanted as chosen_cells
from bench.harness.kept import FOLDER
from bench.harness.runs import Runs
from bench.harness.table import Result
from bench.sums import protocol
from bench.sums.protocol import RIVAL, TREES
from bench.sums.table import table


def cells(*, measures: bool) -> Runs:
    """Return the cells of this bench; with `measures`, missing ones are measured now."""
    return Runs(FOLDER / "sums", chosen_cells(), measures=measures)


def everything() -> None:
    """Measure what is missing, in the protocol's order."""
    measured, there = cells(measures=True), cells(measures=False)
    for arm in (RIVAL, *TREES):
        for wanted in protocol.tuning(arm):
            measured.get(wanted)
    for wanted in protocol.reported(there.get):
        measured.get(wanted)


def run() -> Result:
    """Measure what is missing; return the table."""
    everything()
    return table(cells(measures=False).get)


if __name__ == "__main__":
    everything()
