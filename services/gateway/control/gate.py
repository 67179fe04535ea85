"""The staleness gate: how many training groups to open now (PROTOCOL 5). Decides on stored facts alone, so it cannot drift.

open trees = (step + 1 + max_staleness) x batch − consumed − open, where consumed is whole batches: a batch that closed short
leaves no debt behind. Dropped groups are in no term, so each gives its place back at once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run's training groups stand, as the store says. May lag behind what was published, never lead."""

    step: int  # newest policy step; may be below `batches` while a learner replays
    batches: int  # batches committed
    open: int  # groups that grow or are scored
    closed: int  # groups that no batch holds yet
    dropped: int = 0  # groups given up
    opened: int = 0  # all of them: ordinals 0..opened-1 are stored

    @property
    def in_hand(self) -> int:
        """Groups that a coming batch can still take."""
        return self.open + self.closed


@dataclass(frozen=True, slots=True)
class Gate:
    """How far sampling may run ahead of training."""

    groups_per_batch: int
    max_staleness: int

    def room(self, standing: Standing, last_batch: int) -> int:
        """Groups to open now. Batches from `last_batch` on may not be prepared: the budget ends, or an evaluation is due."""
        ahead = min(standing.step + 1 + self.max_staleness, last_batch) - standing.batches
        return max(0, ahead * self.groups_per_batch - standing.in_hand)

    def min_step(self, standing: Standing, position: int) -> int:
        """Oldest policy that may sample the group that comes `position` places after those in hand."""
        batch = standing.batches + (standing.in_hand + position) // self.groups_per_batch
        return max(0, min(standing.step, batch - self.max_staleness))
