"""Which policy a node should sample from: pure rules over what is published and what its trees allow."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from banyan.policy import PolicyVersion
from banyan.v1 import events_pb2
from banyan.wire.segments import policy_from_wire
from services.rollout.growth.spec import GrowSpec


@dataclass(frozen=True, slots=True)
class Published:
    """A policy and where its weights are."""

    policy: PolicyVersion
    folder: Path
    address: str
    bytes: int

    @property
    def name(self) -> str:
        """Name of its weight file."""
        return f"policy-{self.policy.epoch}-{self.policy.step}"


def from_wire(message: events_pb2.PolicyPublished) -> Published:
    """Reads PolicyPublished."""
    policy = policy_from_wire(message.policy)
    return Published(policy, Path(message.path), message.address, message.bytes)


def newest(policies: Sequence[Published]) -> Published | None:
    """By learner epoch, then step: numbers never go back within an epoch, and a newer epoch overrules."""
    return max(policies, key=lambda p: (p.policy.epoch, p.policy.step), default=None)


def wanted(
    policies: Sequence[Published],
    loaded: PolicyVersion | None,
    live: Sequence[GrowSpec],
    pending: Sequence[GrowSpec],
) -> Published | None:
    """The policy to load now; None to stay.

    The newest, unless a live tree does not allow it: then the loaded one stays until that tree is grown. A tree that asks
    for an older one exactly gets it when nothing is live.
    """
    best = newest(policies)
    if best is None or (
        loaded is not None and not all(spec.allows(best.policy.step) for spec in live)
    ):
        return None
    first = pending[0] if pending else None
    if first is not None and not live and not first.allows(best.policy.step):
        best = newest([p for p in policies if first.allows(p.policy.step)]) or best
    return None if best.policy == loaded else best
