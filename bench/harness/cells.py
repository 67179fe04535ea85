"""Measurements that are kept one by one, so that an interrupted bench continues."""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


class Cells:
    """JSON file of cells. `only`: beginnings of the names to measure in this call; empty for
    all."""

    def __init__(self, path: Path, only: Sequence[str] = ()) -> None:
        self._path, self._only = path, tuple(only)
        self.held: dict[str, Cell] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, measure: Callable[[], Cell]) -> Cell | None:
        """Return the cell, measured now if missing; None if this call leaves it out."""
        if name not in self.held:
            if self._only and not name.startswith(self._only):
                return None
            begun, load = time.time(), os.getloadavg()[0]
            print(f"  {name} …", flush=True)
            cell = measure()
            self.held[name] = cell | {
                "at": begun,
                "took_s": time.time() - begun,
                "load": [load, os.getloadavg()[0]],
            }
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self.held, indent=1))
        return self.held[name]


def wanted(environ: str = "BENCH_CELLS") -> list[str]:
    """Return the names of cells, or their beginnings, that the caller lists with commas."""
    return [name for name in os.environ.get(environ, "").split(",") if name]
