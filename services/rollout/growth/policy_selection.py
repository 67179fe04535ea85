"""Selection of the policy that a node samples from. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from banyan.policy import PolicyVersion
from banyan.v1 import events_pb2
from banyan.wire.segments import policy_from_wire
from services.rollout.growth.spec import GrowSpec


@dataclass(frozen=True, slots=True)
class Published:
    """A published policy.

    policy: its version.
    folder: folder of its weights on the learner's host.
    address: address of the learner.
    bytes: size of its weights.
    traceparent: of the step that made it; empty for the base model and without telemetry.
    """

    policy: PolicyVersion
    folder: Path
    address: str
    bytes: int
    traceparent: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The name of its weight file."""
        return f"policy-{self.policy.epoch}-{self.policy.step}"


def from_wire(message: events_pb2.PolicyPublished) -> Published:
    """Read a PolicyPublished."""
    policy = policy_from_wire(message.policy)
    return Published(
        policy,
        Path(message.path),
        address=message.address,
        bytes=message.bytes,
        traceparent=message.traceparent,
    )


def newest(policies: Sequence[Published]) -> Published | None:
    """Return the policy with the highest learner epoch and, within it, the highest step.

    A newer epoch overrules a higher step: its learner resumed from a checkpoint.
    """
    return max(policies, key=lambda p: (p.policy.epoch, p.policy.step), default=None)


def wanted(
    policies: Sequence[Published],
    loaded: PolicyVersion | None,
    growing: Sequence[GrowSpec],
    pending: Sequence[GrowSpec],
) -> Published | None:
    """Return the policy to load now; None to stay with the loaded one.

    It is the newest, unless a growing tree does not allow that; then the loaded one stays until the
    tree is grown. If nothing grows, the first pending tree gets an older policy that it requires.
    """
    best = newest(policies)
    if best is None:
        return None
    if loaded is not None and not all(spec.allows(best.policy.step) for spec in growing):
        return None
    first = pending[0] if pending else None
    if first is not None and not growing and not first.allows(best.policy.step):
        best = newest([p for p in policies if first.allows(p.policy.step)]) or best
    return None if best.policy == loaded else best
