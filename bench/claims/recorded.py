"""Figures that other benches recorded, row by row."""

import math
import re
from collections.abc import Mapping

from bench.harness.record import read
from bench.pages import FIGURES
from methods.control.student_t import quantile


def rows(table: str) -> list[Mapping[str, str]]:
    """Return the rows of a recorded table by the names of its columns; of equal names the last.

    table: the bench, or the bench and another of its tables, as in `packing/shapes`
    """
    bench, _, name = table.partition("/")
    found = read(FIGURES / bench / f"{name or 'recorded'}.json")
    return [dict(zip(found.columns, map(str, row), strict=True)) for row in found.rows]


def row(table: str, of: str) -> Mapping[str, str]:
    """Return the row that begins with a text. Raises KeyError if none does."""
    for found in rows(table):
        if next(iter(found.values())).startswith(of):
            return found
    raise KeyError(f"{table} has no row {of!r}")


def mean_and_deviation(text: str) -> tuple[float, float]:
    """Read `12.3 ± 4.5`, bold or not."""
    mean, deviation = re.findall(r"[\d.]+", text)[:2]
    return float(mean), float(deviation)


def welch(first: str, second: str, runs: int) -> tuple[float, float, float]:
    """Return the difference of two recorded means with Welch's 95 % interval.

    runs: runs of each side
    """
    (mean, deviation), (other, spread) = mean_and_deviation(first), mean_and_deviation(second)
    parts = [deviation**2 / runs, spread**2 / runs]
    below = sum(part**2 / (runs - 1) for part in parts)
    freedom = max(1, math.floor(sum(parts) ** 2 / below)) if below else 1
    half = quantile(0.05, freedom) * math.sqrt(sum(parts))
    return mean - other, mean - other - half, mean - other + half
