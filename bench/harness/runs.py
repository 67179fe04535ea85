"""Runs that a protocol wants, with the cells that are kept of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.harness.kept import Cell, Kept


class Wanted(Protocol):
    """A run to measure."""

    @property
    def name(self) -> str:
        """Name of its cell."""

    def asked(self) -> dict[str, Any]:
        """Return all that decides about its figures."""

    def measure(self) -> Cell:
        """Run it."""


class Runs:
    """The cells of a bench's runs.

    measures: whether a missing one is measured now
    only: beginnings of the names to measure in this call; empty for all
    """

    def __init__(self, folder: Path, only: Sequence[str], *, measures: bool) -> None:
        self._kept, self._measures = Kept(folder, only), measures

    def get(self, wanted: Wanted) -> Cell | None:
        """Return a cell; None if it is missing, and not to be measured here and now."""
        if not self._measures and not self._kept.path(wanted.name).exists():
            return None
        return self._kept.get(wanted.name, wanted.asked(), wanted.measure)
