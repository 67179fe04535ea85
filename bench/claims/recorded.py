"""Figures that other benches recorded, row by row."""

from collections.abc import Mapping

from bench.harness.record import read
from bench.pages import FIGURES


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
