"""Seconds until a run is at 90 %, and of a step, as bench/results has them."""

import re
from collections.abc import Mapping, Sequence
from statistics import median

from bench.harness.record import Cell, Table
from bench.pictures.bars import Bar, Panel

_SECONDS = re.compile(r"(?:^|, )([\d.]+) s\b")


def panels(known: Mapping[str, Table]) -> list[Panel]:
    """Return the picture's panels.

    known: recorded tables by name

    Raises ValueError for a cell without seconds, as of a run that was never there.
    """
    learning, step = known["trl/learning"], known["step"]
    theirs, loops, ours = (_until(learning, side) for side in ("TRL", "naive loop", "Banyan"))
    naive, trees = (_of_step(step, column) for column in ("naive loop", "trees"))
    return [
        Panel(
            "Seconds of training until held-out accuracy is at 90 % twice in a row",
            "Bars: medians; dots: three seeds. recipes/arithmetic.yaml; Banyan with all services. "
            f"Two cores, no GPU, {learning.date}.",
            "s",
            [
                Bar("GRPOTrainer of TRL", median(theirs), False, theirs),
                *(Bar("naive loop", median(loops), False, loops) for _ in loops[:1]),
                Bar("Banyan", median(ours), True, ours),
            ],
        ),
        Panel(
            "Seconds of a step, sampling and training, in one process",
            "Medians of 5 steps. The naive loop repeats each prompt for each sample. Two cores, "
            f"no GPU, {step.date}.",
            "s",
            [Bar("naive loop", naive, False), Bar("Banyan", trees, True)],
        ),
    ]


def _until(table: Table, side: str) -> list[float]:
    """Return a side's seconds, seed by seed; none where the table is without it."""
    place = list(table.columns).index("twice in a row at 90 %")
    return [_seconds(row[place]) for row in table.rows if row[1] == side]


def _of_step(table: Table, column: str) -> float:
    rows: dict[Cell, Sequence[Cell]] = {row[0]: row for row in table.rows}
    return _seconds(rows["both"][list(table.columns).index(column)])


def _seconds(cell: Cell) -> float:
    found = _SECONDS.search(str(cell))
    if found is None:
        raise ValueError(f"{cell!r} has no seconds: leave this figure out of the picture")
    return float(found[1])
