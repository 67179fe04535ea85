"""Where a learner stands: the policy in memory and the batch that comes next."""

from dataclasses import dataclass, field

from banyan.policy import PolicyVersion
from services.learner.checkpoints.checkpoint import Mark
from services.learner.data.staleness import History


@dataclass
class Position:
    """Read by the gRPC server, changed only by the loop."""

    epoch: int = 0
    step: int = 0
    next_ordinal: int = 0
    digest: bytes = b""
    activity: str = "loading"
    history: History = field(default_factory=History)

    def hold(self, digest: bytes) -> None:
        """The weights in memory have this digest."""
        self.digest = digest
        self.history.live[digest] = self.step

    @property
    def version(self) -> PolicyVersion:
        """The policy in memory."""
        return PolicyVersion(self.epoch, self.step, self.digest)

    def mark(self, run_id: str) -> Mark:
        """Mark of a checkpoint taken here."""
        return Mark(run_id, self.epoch, self.step, self.next_ordinal, self.digest.hex())
