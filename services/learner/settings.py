"""The settings of the learner, read from the environment."""

from dataclasses import dataclass
from pathlib import Path

from services.chassis.process.settings import Settings


@dataclass(frozen=True, kw_only=True)
class LearnerSettings(Settings):
    """The settings of one learner: BANYAN_RUN is required, the rest has defaults."""

    run: str
    """Id of the run that this process trains."""
    threads: int | None = None
    """Torch threads; empty for torch's own choice. The launcher divides the cores."""
    threads_file: Path | None = None
    """File in which the launcher writes a new number of threads while the process runs."""
    weights: Path | None = None
    """Folder of published weights; empty for shared memory if they fit, else the run's folder."""
    advertise: str = ""
    """host:port at which other hosts reach this server; empty for the address it listens on."""
    rank_timeout_s: float = 60.0
    """Seconds that ranks wait in a collective, before they end and name the rank at fault."""
    rank_load_s: float = 900.0
    """Seconds that a rank with a loaded model waits for the others, before it does the same."""
    ranks: int = 1
    """Number of ranks, with those that this process starts; only a single one binds its threads."""
    tick_s: float = 2.0
    """Seconds after which the store is asked without a trigger."""
