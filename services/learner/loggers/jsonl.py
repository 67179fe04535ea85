"""JSON lines: `metrics.jsonl`, a line a step, on disk at once, to be read while the run goes on."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from banyan.loggers import LoggedRun

FILE = "metrics.jsonl"


@dataclass
class JsonLines:
    """`{"step": 3, "reward": 0.25, …}`."""

    folder: str = ""
    """Folder of the file; empty for the run's own folder."""
    _file: IO[bytes] | None = field(default=None, init=False, repr=False)

    def begin(self, run: LoggedRun) -> int:
        """Open the file and cut off an incomplete last line; return the newest step in it."""
        folder = Path(self.folder) / run.run_id if self.folder else run.folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        newest, size = _whole_lines(path)
        self._file = path.open("ab")
        self._file.truncate(size)
        return newest

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._file is not None, "begin() comes first"
        line = json.dumps({"step": step, **metrics}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _whole_lines(path: Path) -> tuple[int, int]:
    """Return the newest trained step in a file, −1 for none, and the bytes of its whole lines."""
    newest, size = -1, 0
    if not path.exists():
        return newest, size
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            size += len(line)
            record = json.loads(line)
            if any(name != "step" and not name.startswith("eval_") for name in record):
                newest = max(newest, int(record["step"]))
    return newest, size
