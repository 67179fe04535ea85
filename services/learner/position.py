"""The position of a learner in its run: the policy in memory and the next batch."""

from dataclasses import dataclass, field

from banyan.policy import PolicyVersion
from services.learner.checkpoints.checkpoint import Mark
from services.learner.data.staleness import History


@dataclass
class Position:
    """The state that the gRPC server reads and the loop alone changes.

    epoch: learner epoch
    step: step of the policy in memory
    next_ordinal: ordinal of the next batch
    digest: digest of the weights in memory
    activity: present activity, for people
    history: policies of the run, by which ages are counted
    """

    epoch: int = 0
    step: int = 0
    next_ordinal: int = 0
    digest: bytes = b""
    activity: str = "loading"
    history: History = field(default_factory=History)

    def set_weights(self, digest: bytes) -> None:
        """Record the digest of the weights in memory."""
        self.digest = digest
        self.history.live[digest] = self.step

    @property
    def version(self) -> PolicyVersion:
        """The policy in memory."""
        return PolicyVersion(self.epoch, self.step, self.digest)

    def mark(self, run_id: str) -> Mark:
        """Return the mark of a checkpoint of this position."""
        return Mark(
            run_id=run_id,
            learner_epoch=self.epoch,
            step=self.step,
            next_ordinal=self.next_ordinal,
            policy_digest=self.digest.hex(),
        )
