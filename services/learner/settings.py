"""Settings of the learner, read from the environment."""

from dataclasses import dataclass
from pathlib import Path

from services.chassis.process.settings import Settings


@dataclass(frozen=True, kw_only=True)
class LearnerSettings(Settings):
    """BANYAN_RUN is required; the rest has defaults."""

    run: str
    """Id of the run that this process trains."""
    threads: int | None = None
    """Torch threads; empty for torch's own choice. The launcher divides the cores."""
    threads_file: Path | None = None
    """File in which the launcher writes another number of threads while the process runs; empty for one that does not."""
    weights: Path | None = None
    """Folder that weights are handed out from; empty for shared memory where it fits, else the run's folder."""
    advertise: str = ""
    """host:port at which other hosts reach this process's gRPC server; empty for the address it listens on."""
    rank_timeout_s: float = 60.0
    """How long ranks wait for each other in a collective, before they end and say which one is to blame."""
    rank_load_s: float = 900.0
    """How long a rank that has loaded the model waits for the others, before it ends and says which one is to blame."""
    ranks: int = 1
    """Processes that this one is to be, with those that it starts: only the threads of one alone are bound to cores."""
    tick_s: float = 2.0
    """Longest wait for a trigger before the store is asked anyway."""
