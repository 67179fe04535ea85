"""A version of the weights: what a segment was sampled with, a learner publishes and a node loads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """Numbers for order, digest for identity.

    epoch: the learner's epoch, which rises with each learner that takes the run over.
    step: training steps since the base model.
    digest: BLAKE3 of the weights as they are published; the base model's has one, too.
    """

    epoch: int
    step: int
    digest: bytes

    @property
    def name(self) -> str:
        """Name of the version's object in a run's object store."""
        return f"policy-{self.epoch}-{self.step}"
