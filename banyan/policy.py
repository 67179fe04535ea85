"""Version of the weights: recorded with a segment, published by a learner, loaded by a node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """Version of the weights: numbers for order, digest for identity.

    epoch: the learner's epoch, which rises with each learner that takes the run over
    step: training steps since the base model
    digest: BLAKE3 of the published weights; the base model has one, too
    """

    epoch: int
    step: int
    digest: bytes

    @property
    def name(self) -> str:
        """Name of the version's object in a run's object store."""
        return f"policy-{self.epoch}-{self.step}"


def batch_of(step: int) -> int:
    """Return the ordinal of the batch that made the policy of a step, which is 1 or more.

    Each batch makes one policy, also one that is set aside; the base model is that of step 0
    (docs/protocol.md, Batches).
    """
    return step - 1
