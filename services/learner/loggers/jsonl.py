"""JSON lines: `metrics.jsonl`, a line a step, on disk at once, to be read while the run goes on.

Samples of completions go to `completions.jsonl`, a line each.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from banyan.loggers import LoggedRun
from banyan.loggers.completions import Completion, plain

FILE = "metrics.jsonl"
SAMPLES = "completions.jsonl"


@dataclass
class JsonLines:
    """`{"step": 3, "reward": 0.25, …}`."""

    folder: str = ""
    """Folder of the file; empty for the run's own folder."""
    completions: int = 0
    """Samples of a step's completions."""
    completions_every: int = 1
    """Steps between sampled steps."""
    _folder: Path = field(default=Path(), init=False, repr=False)
    _file: IO[bytes] | None = field(default=None, init=False, repr=False)
    _samples: IO[bytes] | None = field(default=None, init=False, repr=False)
    _sampled: int = field(default=-1, init=False, repr=False)

    def begin(self, run: LoggedRun) -> int:
        """Open the file and cut off an incomplete last line; return the newest step in it."""
        self._folder = Path(self.folder) / run.run_id if self.folder else run.folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file, newest = _opened(self._folder / FILE, _is_trained)
        return newest

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._file is not None, "begin() comes first"
        _write(self._file, [{"step": step, **metrics}])

    def log_completions(self, step: int, rows: Sequence[Completion]) -> None:
        """Write a line for each sample, unless the file has samples of this step or later ones."""
        if self._samples is None:
            self._samples, self._sampled = _opened(self._folder / SAMPLES, lambda _: True)
        if step > self._sampled:
            _write(self._samples, [plain(row) for row in rows])
            self._sampled = step

    def close(self) -> None:
        for file in (self._file, self._samples):
            if file is not None:
                file.close()
        self._file = self._samples = None


def _write(file: IO[bytes], records: Sequence[Mapping[str, Any]]) -> None:
    """Append records, durably."""
    lines = (json.dumps(record, allow_nan=False).encode() + b"\n" for record in records)
    file.write(b"".join(lines))
    file.flush()
    os.fsync(file.fileno())


def _opened(path: Path, counts: Callable[[Mapping[str, Any]], bool]) -> tuple[IO[bytes], int]:
    """Open a file without its incomplete last line; return it and the newest step in it.

    counts: whether a record's step does
    """
    newest, size = _whole_lines(path, counts)
    file = path.open("ab")
    file.truncate(size)
    return file, newest


def _is_trained(record: Mapping[str, Any]) -> bool:
    """Return whether a record is of a trained step, and not of an evaluation."""
    return any(name != "step" and not name.startswith("eval_") for name in record)


def _whole_lines(path: Path, counts: Callable[[Mapping[str, Any]], bool]) -> tuple[int, int]:
    """Return the newest step in a file, −1 for none, and the bytes of its whole lines."""
    newest, size = -1, 0
    if not path.exists():
        return newest, size
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            size += len(line)
            record = json.loads(line)
            if counts(record):
                newest = max(newest, int(record["step"]))
    return newest, size
