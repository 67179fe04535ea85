"""JSON lines: `metrics.jsonl`, a line a step, on the disk once it is written, to be read while the run goes on."""

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
    """Where the file lies; empty for the run's own folder."""
    _file: IO[bytes] | None = field(default=None, init=False, repr=False)

    def begin(self, run: LoggedRun) -> int:
        """Cuts off a line that was not written to its end."""
        folder = Path(self.folder) / run.run_id if self.folder else run.folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        held, size = _held(path)
        self._file = path.open("ab")
        self._file.truncate(size)
        return held

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._file is not None, "begin() comes first"
        self._file.write(json.dumps({"step": step, **metrics}, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _held(path: Path) -> tuple[int, int]:
    """The newest trained step in the file, -1 for none, and the bytes of its whole lines."""
    held, size = -1, 0
    if path.exists():
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                size += len(line)
                said = json.loads(line)
                if any(name != "step" and not name.startswith("eval_") for name in said):
                    held = max(held, int(said["step"]))
    return held, size
