"""Weights & Biases.

Without a network, `mode: offline` (or WANDB_MODE=offline) keeps the run for `wandb sync`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from banyan.loggers import LoggedRun
from banyan.loggers.completions import NAME, Completion, table
from banyan.loggers.tags import GROUPED, named

MODES = ("", "online", "offline", "disabled")
_LONGEST_ID = 64
_INIT_S = 20.0  # wait for a server that does not answer, which delays the learner's end


@dataclass
class WeightsAndBiases:
    """A run of the same id at Weights & Biases.

    `step` is the axis of all curves, since an evaluation may come after later steps.
    """

    PACKAGE: ClassVar[tuple[str, str]] = ("wandb", "wandb==0.31.0")

    project: str = "banyan"
    """Project of the run."""
    entity: str = ""
    """User or team; empty for the default of the account."""
    mode: str = ""
    """online, offline or disabled; empty for WANDB_MODE, or else online."""
    tags: str = GROUPED
    """Names of metrics: grouped (`reward/mean`) or plain (`reward`)."""
    completions: int = 0
    """Samples of a step's completions, as a table."""
    completions_every: int = 1
    """Steps between sampled steps."""
    _run: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} must be one of {', '.join(MODES[1:])}, or empty")

    def begin(self, run: LoggedRun) -> int:
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self.project,
            entity=self.entity or None,
            id=run.run_id[-_LONGEST_ID:],
            name=run.run_id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.recipe),
            mode=self.mode or None,  # type: ignore[arg-type]
            settings=wandb.Settings(console="off", silent=True, init_timeout=_INIT_S),
        )
        self.tags = run.tags
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return run.last

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **named(metrics, self.tags)})

    def log_completions(self, step: int, rows: Sequence[Completion]) -> None:
        import wandb

        columns, data = table(rows)
        shown = wandb.Table(columns=[*columns], data=data, allow_mixed_types=True)
        self._run.log({"step": step, NAME: shown})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
