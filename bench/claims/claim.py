"""Published claims and what is found of them here: rows of docs/claims.md.

A claim's figures are cells that are kept raw in bench/kept/claims, one a seed, or figures that
another bench recorded. A row without its cells says that it is not measured yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness.kept import FOLDER, Cell, Kept

SHOWN = "shown"
NOT_SHOWN = "not shown"
NO_COMPARISON = "cannot be compared"
UNMEASURED = "not measured yet"
KEPT = FOLDER / "claims"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is found of a claim.

    ours: our figure, in words
    n: what it is over
    interval: 95 % interval, or the spread that is known
    on: model, task and machine, or simulation
    """

    ours: str
    verdict: str
    on: str
    n: str = "–"
    interval: str = "–"


Tell = Callable[[Sequence[Cell]], Finding]


def not_measured(cells: Sequence[Cell]) -> Finding:
    """Say that nothing is measured."""
    return Finding(ours=UNMEASURED, verdict=UNMEASURED, on="–")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a system.

    name: argument of the command
    cells: claim whose cells it reads; its own by default
    system: its name and paper
    says: what it claims
    tell: the finding, from all cells in the order of seeds
    seeds: a cell each; none for figures that another bench recorded
    asked: settings of the cells
    measure: the cell of a seed
    bench: command of the bench that recorded the figures; empty if they are measured here
    """

    name: str
    system: str
    says: str
    tell: Tell = not_measured
    seeds: Sequence[int] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    measure: Callable[[int], Cell] | None = None
    bench: str = ""
    cells: str = ""

    @property
    def command(self) -> str:
        """Command that measures it."""
        if self.bench:
            return f"python -m bench {self.bench}"
        return f"python -m bench claims {self.name}" if self.measure else ""

    def find(self, kept: Kept, *, measures: bool = False) -> Finding:
        """Return the finding; measure what is missing if `measures`."""
        if self.measure is None:
            return self.tell(())
        cells = [self._cell(kept, seed, measures) for seed in self.seeds]
        there = [cell for cell in cells if cell is not None]
        return self.tell(there) if len(there) == len(cells) else not_measured(there)

    def _cell(self, kept: Kept, seed: int, measures: bool) -> Cell | None:
        name, measure = f"{self.cells or self.name}/{seed}", self.measure
        if measure is None or not (measures or kept.path(name).exists()):
            return None
        return kept.get(name, {**self.asked, "seed": seed}, lambda: measure(seed))


def verdict(low: float, high: float, claimed: float, none: float = 1.0) -> str:
    """Return whether an interval shows a claim: beyond no effect, and not below the claimed size.

    none: figure without an effect
    """
    return SHOWN if low > none and high >= claimed else NOT_SHOWN
