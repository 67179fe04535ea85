"""Settings of the verifier, read from `BANYAN_<FIELD>`."""

import os
from dataclasses import dataclass

from services.chassis.process.settings import Settings as Shared
from services.verifier.jail.chosen import REQUIRED
from services.verifier.sandbox.allowed.ceilings import Ceilings
from services.verifier.sandbox.limits import Limits


@dataclass(frozen=True, kw_only=True)
class Settings(Shared):
    """Addresses of the verifier, and its limits of time, memory and processes."""

    listen: str = "127.0.0.1:7102"
    """host:port that the gRPC server binds; port 0 picks a free one."""
    verifier_id: str = "verifier"
    """Name of this process in its scores."""
    concurrency: int = 128
    """Leaves of a run under way below which more of its messages begin, of up to 64 leaves each. It
    bounds memory, and the work repeated after a crash. Scores that are ready together travel
    together, so that each costs broker and store less. `children` bounds the scores at once."""
    score_timeout_s: float = 10.0
    """Wall-clock time of one score in a child, up to five times as much where the machine is busy.
    Beyond it an answer that used half of it as processor time is wrong; one that slept is tried
    again, then UNSCORABLE(TIMEOUT). Ten times as much must be less than the store's deadline for a
    leaf."""
    score_memory_mb: int = 1024
    """Memory of one score, in MB, beyond that of its warm child. Functions that load models need
    more."""
    score_timeout_most_s: float = 120.0
    """Most that a recipe may ask for with `deadline_s` of a scorer."""
    score_memory_most_mb: int = 4096
    """Most that a recipe may ask for with `memory_mb` of a scorer."""
    children: int = 2
    """Child processes per scorer."""
    children_most: int = 16
    """Most that a recipe may ask for with `concurrency` of a scorer."""
    scorers: int = 8
    """Scorers that keep warm children at once; the least recently used is evicted."""
    sandbox: str = REQUIRED
    """Back end of the jail in which programs of completions run: `required` for the strongest that
    the machine allows, `namespaces` or `process`. None runs without one."""
    programs: int = 2
    """Programs of completions that run at once."""
    sandbox_network: bool = False
    """Let `judge` and user functions use the network if their recipe says `network: true`."""
    scorer_secrets: str = ""
    """Environment variables, separated by commas, that recipes may give to their scorers."""
    judge_requests: int = 16
    """Requests to endpoints of judges at once."""
    sandbox_read: str = ""
    """Folders, separated by colons, that scorers may read beside the interpreter and the folder of
    their own module."""
    allow_unconfined_scorers: bool = False
    """Score, for every run, on a machine that cannot confine a score: no Landlock, no seccomp
    filters, or root without another user. A recipe may allow it for its own run."""

    @property
    def ceilings(self) -> Ceilings:
        """Bounds of what recipes may ask for a scorer, never below what a scorer has unasked."""
        return Ceilings(
            deadline_s=max(self.score_timeout_s, self.score_timeout_most_s),
            memory_mb=max(self.score_memory_mb, self.score_memory_most_mb),
            concurrency=max(self.children, self.children_most),
        )

    @property
    def limits(self) -> Limits:
        """Limits of one score."""
        private = (self.secret_file, self.nats_creds, self.state)
        return Limits(
            deadline_s=self.score_timeout_s,
            memory_mb=self.score_memory_mb,
            network=self.sandbox_network,
            secrets=self.secret_names,
            readable=tuple(path for path in self.sandbox_read.split(":") if path),
            withheld=tuple(os.path.abspath(path) for path in private if path),
            unconfined=self.allow_unconfined_scorers,
        )

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Names of the environment variables that recipes may give to their scorers."""
        return tuple(name.strip() for name in self.scorer_secrets.split(",") if name.strip())
