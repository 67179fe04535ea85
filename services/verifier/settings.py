"""Settings of the verifier, read from `BANYAN_<FIELD>`."""

import os
from dataclasses import dataclass

from services.chassis.process.settings import Settings as Shared
from services.verifier.sandbox.limits import Limits


@dataclass(frozen=True, kw_only=True)
class Settings(Shared):
    """What the verifier may take, in time, memory and processes."""

    listen: str = "127.0.0.1:7102"
    """host:port that the gRPC server binds; port 0 takes a free one."""
    verifier_id: str = "verifier"
    """Name of this process in the scores that it gives."""
    concurrency: int = 32
    """Leaves of a run under way below which more of its messages are begun, of up to 64 leaves each: bounds memory, and what
    is scored again after a crash. How many are scored at once in children is `children`."""
    score_timeout_s: float = 10.0
    """Wall-clock time of one score in a child; then UNSCORABLE(TIMEOUT). Less than the store's deadline for a leaf."""
    score_memory_mb: int = 1024
    """Memory of one score beyond its warm child's. User functions that load models need more."""
    children: int = 2
    """Child processes per scorer."""
    scorers: int = 8
    """Scorers that keep warm children at once; the least used gives way."""
    sandbox_network: bool = False
    """Whether user functions may use the network, for a judge behind an address. Other scorers never may."""
    sandbox_read: str = ""
    """Folders, parted by colons, that scorers may read beside the interpreter and their own module's folder."""
    allow_unconfined_scorers: bool = False
    """Whether to score, for every run, on a machine that cannot confine a score: no Landlock, no seccomp filters, or as root
    without another user. A recipe may say so for its own run."""

    @property
    def limits(self) -> Limits:
        """Limits of one score."""
        return Limits(
            deadline_s=self.score_timeout_s,
            memory_mb=self.score_memory_mb,
            network=self.sandbox_network,
            readable=tuple(p for p in self.sandbox_read.split(":") if p),
            withheld=tuple(
                os.path.abspath(p) for p in (self.secret_file, self.nats_creds, self.state) if p
            ),
            unconfined=self.allow_unconfined_scorers,
        )
