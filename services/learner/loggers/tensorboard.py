"""TensorBoard event files, through tensorboardX: 90 kB, where `tensorboard` brings a web server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from banyan.loggers import LoggedRun


@dataclass
class TensorBoard:
    """Event files with a scalar per metric.

    A restarted learner begins a new file, whose first record voids later steps of the old one.
    """

    PACKAGE: ClassVar[tuple[str, str]] = ("tensorboardX", "tensorboardX==2.6.5")

    folder: str = ""
    """Parent of the run's folder of events; empty for the run's own folder."""
    _writer: Any = field(default=None, init=False, repr=False)

    def begin(self, run: LoggedRun) -> int:
        from tensorboardX import SummaryWriter

        folder = Path(self.folder) / run.run_id if self.folder else run.folder
        purge_step = run.last + 1 if run.last >= 0 else None
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)
        return run.last

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
