"""Cells of the experiment `trees` in the protocol's order.

`python -m bench.trees.measure`, once for each core, measures: tokens and accuracy do not depend on
load, and each process leaves out the cell that another measures. Every cell is kept raw, in
bench/kept/trees. `python -m bench trees` measures what is missing, and writes the table, with what
`bench.trees.quiet` has measured.
"""

from bench.harness.cells import wanted as chosen_cells
from bench.harness.kept import FOLDER
from bench.harness.runs import Runs
from bench.harness.table import Result
from bench.trees import protocol, quiet
from bench.trees.protocol import OTHERS, RIVALS
from bench.trees.table import table


def cells(*, measures: bool) -> Runs:
    """Return the cells of this bench; with `measures`, missing ones are measured now."""
    return Runs(FOLDER / "trees", chosen_cells(), measures=measures)


def everything() -> None:
    """Measure what is missing, in the protocol's order."""
    measured, there = cells(measures=True), cells(measures=False)
    for name in RIVALS:
        for wanted in protocol.first_look(name):
            measured.get(wanted)
    rival = protocol.rival(there.get)
    for name in (rival, *OTHERS) if rival else OTHERS:
        for wanted in protocol.tuning(name):
            measured.get(wanted)
    for wanted in protocol.reported(there.get):
        measured.get(wanted)
    for ask in (protocol.matched, protocol.matched_rival):
        for wanted in ask(there.get):
            measured.get(wanted)
        for wanted in protocol.matched_runs(ask(there.get), there.get):
            measured.get(wanted)
    for ask in (protocol.beyond, protocol.screened):
        for wanted in ask(there.get):
            measured.get(wanted)


def run() -> Result:
    """Measure what is missing; return the table."""
    everything()
    kept = cells(measures=False).get
    result = table(kept)
    notes, heads = quiet.said(kept, quiet.cells(measures=False).get)
    result.notes += notes
    result.heads += heads
    return result


if __name__ == "__main__":
    everything()
