"""TensorBoard event files, through tensorboardX: 90 kB, where `tensorboard` brings a web server."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from banyan.loggers import LoggedRun
from banyan.loggers.completions import NAME, Completion, plain
from banyan.loggers.tags import GROUPED, named
from banyan.text.printable import printable

_TEXTS = ("prompt", "completion")


@dataclass
class TensorBoard:
    """Event files with a scalar per metric, and a text per sample of completions.

    A restarted learner begins a new file, whose first record voids later steps of the old one.
    """

    PACKAGE: ClassVar[tuple[str, str]] = ("tensorboardX", "tensorboardX==2.6.5")

    folder: str = ""
    """Parent of the run's folder of events; empty for the run's own folder."""
    tags: str = GROUPED
    """Names of metrics: grouped (`reward/mean`) or plain (`reward`)."""
    completions: int = 0
    """Samples of a step's completions, as texts."""
    completions_every: int = 1
    """Steps between sampled steps."""
    _writer: Any = field(default=None, init=False, repr=False)

    def begin(self, run: LoggedRun) -> int:
        from tensorboardX import SummaryWriter

        self.tags = run.tags
        folder = Path(self.folder) / run.run_id if self.folder else run.folder
        purge_step = run.last + 1 if run.last >= 0 else None
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)
        return run.last

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in named(metrics, self.tags).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_completions(self, step: int, rows: Sequence[Completion]) -> None:
        for number, row in enumerate(rows, 1):
            self._writer.add_text(f"{NAME}/{number}", markdown(row), step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def markdown(row: Completion) -> str:
    """Return a sample as Markdown in which its texts stay texts.

    Figures come first, a line each. Prompt and completion are in `<pre>`, and each of their
    characters but letters, digits and spaces is a character reference, so that nothing in them is
    Markdown or HTML.
    """
    values = plain(row)
    figures = [name for name in values if name not in _TEXTS]
    lines = [f"- {_literal(name)}: {_literal(_figure(values[name]))}" for name in figures]
    for name in _TEXTS:
        lines += ["", f"**{name}**", "", f"<pre>{_literal(values[name])}</pre>"]
    return "\n".join(lines)


def _figure(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)


def _literal(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9 ]", lambda match: f"&#{ord(match[0])};", printable(text))
