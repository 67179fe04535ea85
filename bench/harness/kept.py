"""Raw measurements that git keeps: a file a cell, with the commit and the date.

A cell is written as soon as it is measured, so an interrupted bench continues. A cell stays until
its file is removed; one that was measured with other settings than the requested ones is refused,
not mixed with the others. Several processes may measure cells of one bench: each leaves out those
that another measures.
"""

import contextlib
import fcntl
import gc
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from banyan.errors import InvalidInput
from bench.harness.record import RESULTS

FOLDER = Path(
    os.environ.get("BENCH_KEPT", Path(__file__).parents[1] / "kept")
).absolute()  # another folder to try things in
Cell = dict[str, Any]


class Kept:
    """Cells of one bench. `only`: beginnings of the names to measure in this call; empty for
    all."""

    def __init__(self, folder: Path, only: Sequence[str] = ()) -> None:
        self._folder, self._only = folder, tuple(only)

    def path(self, name: str) -> Path:
        """Return the file of a cell."""
        return self._folder / f"{name.replace('/', '-')}.json"

    def chosen(self, name: str) -> bool:
        """Return whether this call measures the cell if missing."""
        return not self._only or name.startswith(self._only)

    def get(self, name: str, asked: Mapping[str, Any], measure: Callable[[], Cell]) -> Cell | None:
        """Return the cell, measured now if missing; None if this call leaves it out.

        Raises RuntimeError for a kept cell of other settings.

        asked: settings of the measurement
        """
        path = self.path(name)
        if path.exists():
            return self._held(path, asked)
        if not self.chosen(name):
            return None
        with self._claimed(name) as mine:
            if not mine:
                return None
            if not path.exists():
                self._measure(name, asked, measure)
        return self._held(path, asked)

    @contextlib.contextmanager
    def _claimed(self, name: str) -> Iterator[bool]:
        """Provide whether this process alone measures the cell within the context.

        The claim of a process ends with it. Raises InvalidInput where nothing can be kept.
        """
        path = self.path(name).with_suffix(".lock")
        with _opened(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)

    def _measure(self, name: str, asked: Mapping[str, Any], measure: Callable[[], Cell]) -> None:
        path = self.path(name)
        print(f"  {name} …", flush=True)
        begun, load, commit = time.time(), os.getloadavg()[0], commit_of(self._folder, RESULTS)
        result = measure()
        about = {
            "cell": name,
            "commit": commit,
            "date": datetime.fromtimestamp(begun, UTC).isoformat(timespec="seconds"),
            "took_s": round(time.time() - begun, 1),
            "load": [load, os.getloadavg()[0]],
            "cores": len(os.sched_getaffinity(0)),
            "asked": dict(asked),
        }
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(about | result, indent=1, default=str) + "\n")
        fresh.replace(path)
        gc.collect()  # a model lies in cycles, and the next cell needs its memory

    @staticmethod
    def _held(path: Path, asked: Mapping[str, Any]) -> Cell:
        cell = _read(path)
        if cell["asked"] != json.loads(json.dumps(dict(asked))):
            then, now = cell["asked"], dict(asked)
            raise RuntimeError(
                f"{path} was measured with {then}, now {now} is asked; remove it to measure anew"
            )
        return cell


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")
    except OSError as error:
        problem = f"{path.parent} takes no cells ({error.strerror})"
        raise InvalidInput(f"{problem}; name another folder in BENCH_KEPT") from None


def _read(path: Path) -> Cell:
    """Read a cell. Raises RuntimeError if the file holds none."""
    try:
        cell = json.loads(path.read_bytes())
    except ValueError as error:
        raise RuntimeError(f"{path} is not JSON: {error}; remove it to measure anew") from None
    if not isinstance(cell, dict) or "asked" not in cell:
        raise RuntimeError(f"{path} holds no cell; remove it to measure anew")
    return cell


def commit_of(*apart: Path) -> str:
    """Return the measured commit, and whether tracked files differ from it outside the folders
    `apart`."""
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
        problem = f"git {arguments[0]}: {done.stderr.strip()}"
        raise RuntimeError(
            f"{problem}; raw figures are kept with their commit: measure in a checkout"
        )
    return done.stdout.rstrip()
