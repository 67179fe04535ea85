"""How old a segment is, in optimizer steps between the weights that sampled it and the weights in training. Pure.

After a rewind the numbers start again from the checkpoint, so a segment of an abandoned policy counts from the last step
that both histories share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree


@dataclass(slots=True)
class History:
    """The policies of a run: the steps of the live ones by digest, and the first abandoned step of each learner epoch."""

    live: dict[bytes, int] = field(default_factory=dict)
    abandoned_from: dict[int, int] = field(default_factory=dict)

    def note_abandoned(self, policies: Sequence[tuple[int, int]]) -> None:
        """Takes (epoch, step) of abandoned policies."""
        for epoch, step in policies:
            self.abandoned_from[epoch] = min(step, self.abandoned_from.get(epoch, step))

    def age(self, segment: Segment, step: int) -> int:
        """Steps that the segment's policy is behind `step`; 0 for context."""
        if segment.kind is not Kind.POLICY:
            return 0
        sampled = self.live.get(segment.policy)
        if sampled is None:
            shared = self.abandoned_from.get(segment.policy_epoch, segment.policy_step + 1) - 1
            sampled = min(segment.policy_step, shared)
        return max(0, step - sampled)

    def age_of_path(self, tree: Tree, leaf: Leaf, step: int) -> int:
        """The age of the oldest tokens of a path. A segment that the path leaves before its first token gave it none."""
        ages = (
            self.age(segment, step) for segment, end in tree.pieces(leaf.segment, leaf.end) if end
        )
        return max(ages, default=0)
