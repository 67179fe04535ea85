"""Result of a bench: rows for people, JSON for programs, and the machine."""

import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import kept
from bench.harness.record import LATEST, NO_TARGET, RESULTS, Headline, Table, number, write

_TARGET = re.compile(r"(at least|at most|above|below|closed form) ([\d.,]*\d)")
_CPUS = Path("/proc/cpuinfo")


@dataclass
class Result:
    """Result of one bench.

    name: name of the bench, with a part of it after a hyphen
    rows: (what, figure, unit, bar or empty)
    """

    name: str
    rows: list[tuple[str, float, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, figure: float, unit: str, bar: str = "") -> None:
        """Add a row."""
        self.rows.append((what, figure, unit, bar))

    def save(self) -> None:
        """Print the table, and write it to bench/results as this machine's last run."""
        write(RESULTS / self.name / LATEST, self.table())
        print(f"\n{self.name}")
        for what, figure, unit, bar in self.rows:
            print(f"  {what:<64} {figure:>12.4g} {unit:<8} {bar}")
        for note in self.notes:
            print(f"  {note}", flush=True)

    def table(self) -> Table:
        """Make the table that is written, with commit, date and machine of this moment."""
        return Table(
            title=f"What `{self.name}` measured",
            columns=["what", "figure", "unit", "target, spread"],
            rows=[[what, figure, unit, bar] for what, figure, unit, bar in self.rows],
            notes=list(self.notes),
            commit=_commit(),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
            command=f"python -m bench {self.name.partition('-')[0]}",
            machine=machine(),
            headline=self._headlines(),
        )

    def _headlines(self) -> list[Headline]:
        """Make a headline of each row that has a target, or of the first row if none has."""
        targets = [row for row in self.rows if _TARGET.search(row[3])]
        return [_headline(*row) for row in targets or self.rows[:1]]


def median(values: Sequence[float]) -> float:
    """Compute the median of several runs."""
    return statistics.median(values)


def _headline(what: str, figure: float, unit: str, bar: str) -> Headline:
    shown = f"{number(figure)} {unit}".rstrip()
    match = _TARGET.search(bar)
    if not match:
        return Headline(what=what, figure=shown, target=NO_TARGET, met=None)
    side, limit = match[1], float(match[2].replace(",", ""))
    reached = {
        "at least": figure >= limit,
        "at most": figure <= limit,
        "below": figure < limit,
        "above": figure > limit,
    }
    met = reached.get(side, True) and "MISSED" not in bar
    return Headline(what=what, figure=shown, target=match[0], met=met)


def _commit() -> str:
    """Return the measured commit; empty outside a checkout."""
    try:
        return kept.commit_of(RESULTS, kept.FOLDER)
    except (RuntimeError, FileNotFoundError):
        return ""


def machine() -> str:
    """Return this machine's cores and processor, and its load at this moment."""
    models = re.findall(r"model name\s*: (.+)", _CPUS.read_text()) if _CPUS.exists() else []
    processor = models[0] if models else platform.machine()
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{cores} cores, {processor}, load {load:.1f} at the end"
