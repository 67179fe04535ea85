"""Cells of the experiment `trees` in the protocol's order.

`python -m bench.trees.measure`, once for each core, measures: tokens and accuracy do not depend on
load, and each process leaves out the cell that another measures. Every cell is kept raw, in
bench/kept/trees. `python -m bench trees` measures what is missing, and writes the table.
"""

from bench.harness.cells import wanted as chosen_cells
from bench.harness.kept import FOLDER, Cell, Kept
from bench.harness.table import Result
from bench.trees import protocol
from bench.trees.protocol import OTHERS, RIVALS, Wanted
from bench.trees.table import table

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
    for ask in (protocol.reported, protocol.matched, protocol.matched_runs, protocol.screened):
        for wanted in ask(there.get):  # each is asked when those before are measured
            cells.get(wanted)


def run() -> Result:
    """Measure what is missing; return the table."""
    everything()
    return table(Cells(measures=False).get)


if __name__ == "__main__":
    everything()
