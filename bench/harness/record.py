"""Tables of measured figures as JSON: one schema for the runs of a bench and for the pages.

Under `bench/results/<bench>`, `latest.json` is the last run on this machine, which git ignores;
`recorded.json` and its neighbours are the figures that docs/benchmarks shows (`bench/pages.py`).
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("BENCH_RESULTS", Path(__file__).parents[1] / "results")).absolute()
LATEST, RECORDED = "latest.json", "recorded.json"
NO_TARGET = "none"

Cell = str | float


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Figure for the overview.

    what: the comparison
    target: target of the figure, or "none"
    met: whether it is reached; None without a target
    """

    what: str
    figure: str
    target: str
    met: bool | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Figures of one bench that were measured together.

    commit: the measured commit, or the one that recorded the figures; empty if unknown
    date: day of the measurement, as YYYY-MM-DD
    machine: cores, processor, and other load
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str]
    commit: str
    date: str
    command: str
    machine: str
    headline: Sequence[Headline] = field(default=())


def read(path: Path) -> Table:
    """Read a table from a JSON file."""
    content: dict[str, Any] = json.loads(path.read_text())
    headline = [Headline(**entry) for entry in content.pop("headline")]
    return Table(**content, headline=headline)


def write(path: Path, table: Table) -> None:
    """Write a table to a JSON file; make its folder if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(table), indent=1, ensure_ascii=False) + "\n")


def number(value: float) -> str:
    """Format a figure: four digits, thousands parted by commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
