"""Cells of the experiment `sums` in the protocol's order.

`python -m bench.sums.measure`, once for each core, measures; every cell is kept raw, in
bench/kept/sums. `python -m bench sums` measures what is missing, and writes the table.
"""

from bench.harness.cells import wanted as chosen_cells
from bench.harness.kept import FOLDER, Cell, Kept
from bench.harness.table import Result
from bench.sums import protocol
from bench.sums.protocol import RIVAL, TREES, Wanted
from bench.sums.table import table

KEPT = FOLDER / "sums"


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
    for arm in (RIVAL, *TREES):
        for wanted in protocol.tuning(arm):
            cells.get(wanted)
    for wanted in protocol.reported(there.get):
        cells.get(wanted)


def run() -> Result:
    """Measure what is missing; return the table."""
    everything()
    return table(Cells(measures=False).get)


if __name__ == "__main__":
    everything()
