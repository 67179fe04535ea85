"""A bench's result: rows for people, JSON for programs, and what the machine was."""

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = Path(os.environ.get("BENCH_RESULTS", Path(__file__).parent / "results")).absolute()


@dataclass
class Result:
    """One bench. `rows`: (what, figure, unit, bar or empty)."""

    name: str
    rows: list[tuple[str, float, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, figure: float, unit: str, bar: str = "") -> None:
        """Adds a row."""
        self.rows.append((what, figure, unit, bar))

    def save(self) -> None:
        """Prints the table and writes it to bench/results."""
        RESULTS.mkdir(exist_ok=True)
        machine = {"cores": len(os.sched_getaffinity(0)), "cpu": platform.processor(), "load": os.getloadavg()}
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self) | {"machine": machine, "at": time.time()}, indent=1))
        print(f"\n{self.name}")
        for what, figure, unit, bar in self.rows:
            print(f"  {what:<64} {figure:>12.4g} {unit:<8} {bar}")
        for note in self.notes:
            print(f"  {note}", flush=True)


def median(values: Sequence[float]) -> float:
    """The median of several runs."""
    return statistics.median(values)
