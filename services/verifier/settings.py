"""Settings of the verifier, read from `BANYAN_<FIELD>`."""

import os
from dataclasses import dataclass

from services.chassis.process.settings import Settings as Shared
from services.verifier.jail.chosen import REQUIRED
from services.verifier.sandbox.limits import Limits


@dataclass(frozen=True, kw_only=True)
class Settings(Shared):
    """Addresses of the verifier, and its limits of time, memory and processes."""

    listen: str = "127.0.0.1:7102"
    """host:port that the gRPC server binds; port 0 picks a free one."""
    verifier_id: str = "verifier"
    """Name of this process in its scores."""
    concurrency: int = 32
    """Leaves of a run under way below which more of its messages begin, of up to 64 leaves each. It
    bounds memory, and the work repeated after a crash. `children` bounds the scores at once."""
    score_timeout_s: float = 10.0
    """Wall-clock time of one score in a child, UNSCORABLE(TIMEOUT) beyond it. Must be less than the
    store's deadline for a leaf."""
    score_memory_mb: int = 1024
    """Memory of one score, in MB, beyond that of its warm child. Functions that load models need
    more."""
    children: int = 2
    """Child processes per scorer."""
    scorers: int = 8
    """Scorers that keep warm children at once; the least recently used is evicted."""
    sandbox: str = REQUIRED
    """Back end of the jail in which programs of completions run: `required` for the strongest that
    the machine allows, `namespaces` or `process`. None runs without one."""
    programs: int = 2
    """Programs of completions that run at once."""
    sandbox_network: bool = False
    """Let user functions use the network, for a judge behind an address. No other scorer may."""
    sandbox_read: str = ""
    """Folders, separated by colons, that scorers may read beside the interpreter and the folder of
    their own module."""
    allow_unconfined_scorers: bool = False
    """Score, for every run, on a machine that cannot confine a score: no Landlock, no seccomp
    filters, or root without another user. A recipe may allow it for its own run."""

    @property
    def limits(self) -> Limits:
        """Limits of one score."""
        private = (self.secret_file, self.nats_creds, self.state)
        return Limits(
            deadline_s=self.score_timeout_s,
            memory_mb=self.score_memory_mb,
            network=self.sandbox_network,
            readable=tuple(path for path in self.sandbox_read.split(":") if path),
            withheld=tuple(os.path.abspath(path) for path in private if path),
            unconfined=self.allow_unconfined_scorers,
        )
