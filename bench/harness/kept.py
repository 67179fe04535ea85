"""Raw measurements that git keeps: a file a cell, written as soon as it is measured, with the commit and the date.

A bench that was cut goes on where it was. A cell stays until its file is removed; one that was measured otherwise than is
asked now is refused, not mixed with the others.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.harness.record import RESULTS

FOLDER = Path(
    os.environ.get("BENCH_KEPT", Path(__file__).parents[1] / "kept")
).absolute()  # another folder to try things in
Cell = dict[str, Any]


class Kept:
    """Cells of one bench. `only`: beginnings of the names that are measured in this call; none for all."""

    def __init__(self, folder: Path, only: Sequence[str] = ()) -> None:
        self._folder, self._only = folder, tuple(only)

    def path(self, name: str) -> Path:
        """Where a cell lies."""
        return self._folder / f"{name.replace('/', '-')}.json"

    def chosen(self, name: str) -> bool:
        """Whether this call measures it where it is missing."""
        return not self._only or name.startswith(self._only)

    def get(self, name: str, asked: Mapping[str, Any], measure: Callable[[], Cell]) -> Cell | None:
        """The cell, measured now if it is missing; None where this call leaves it out. `asked`: how it is measured.

        Raises RuntimeError for a kept cell of other settings.
        """
        path = self.path(name)
        if path.exists():
            return self._held(path, asked)
        if not self.chosen(name):
            return None
        print(f"  {name} …", flush=True)
        begun, load, commit = time.time(), os.getloadavg()[0], commit_of(self._folder, RESULTS)
        said = measure()
        about = {
            "cell": name,
            "commit": commit,
            "date": datetime.fromtimestamp(begun, UTC).isoformat(timespec="seconds"),
            "took_s": round(time.time() - begun, 1),
            "load": [load, os.getloadavg()[0]],
            "cores": len(os.sched_getaffinity(0)),
            "asked": dict(asked),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(about | said, indent=1, default=str) + "\n")
        fresh.replace(path)
        return self._held(path, asked)

    @staticmethod
    def _held(path: Path, asked: Mapping[str, Any]) -> Cell:
        cell: Cell = json.loads(path.read_text())
        if cell["asked"] != json.loads(json.dumps(dict(asked))):
            then, now = cell["asked"], dict(asked)
            raise RuntimeError(
                f"{path} was measured with {then}, now {now} is asked; remove it to measure anew"
            )
        return cell


def commit_of(*apart: Path) -> str:
    """The commit that is measured, and whether tracked files differ from it, but for those in the folders `apart`."""
    head = _git("rev-parse", "HEAD")
    changed = [
        line[3:] for line in _git("status", "--porcelain", "--untracked-files=no").splitlines()
    ]
    root = Path(_git("rev-parse", "--show-toplevel"))
    other = [
        name
        for name in changed
        if not any((root / name).is_relative_to(folder) for folder in apart)
    ]
    return head + ("-changed" if other else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    if done.returncode:
        said = f"git {arguments[0]}: {done.stderr.strip()}"
        raise RuntimeError(f"{said}; raw figures are kept with their commit: measure in a checkout")
    return done.stdout.rstrip()
