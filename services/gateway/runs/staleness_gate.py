"""The staleness gate: how many training groups to open now (PROTOCOL 5). Decides on stored facts alone, so it cannot drift.

open trees = (step + 1 + max_staleness) x batch − consumed − open, where consumed is whole batches: a batch that closed short
leaves no debt behind. Dropped groups are in no term, so each gives its place back at once.

With over-provisioning (APRIL, card 12) it runs ahead by `extra` groups instead of whole batches: a batch is made of the
first that close, the others are cut by its policy and go on first. Nothing is opened that no batch can take any more.
"""

from dataclasses import dataclass

from banyan.recipe import Control


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Where a run's training groups stand, as the store says. May lag behind what was published, never lead."""

    step: int  # newest policy step; may be below `batches` while a learner replays
    batches: int  # batches committed
    open: int  # groups that grow or are scored
    closed: int  # groups that no batch holds yet
    dropped: int = 0  # groups given up
    opened: int = 0  # all of them: ordinals 0..opened-1 are stored
    consumed: int = 0  # groups that a batch holds
    scored: int = 0  # leaves with a value, of trees that were closed
    leaves: int = 0  # all leaves of trees that were closed

    @property
    def in_hand(self) -> int:
        """Groups that a coming batch can still take."""
        return self.open + self.closed

    @property
    def over(self) -> int:
        """Groups of which nothing comes any more."""
        return self.closed + self.consumed + self.dropped


@dataclass(frozen=True, slots=True)
class PolicySteps:
    """The policies that matter to a group."""

    oldest: int  # that may sample it
    last: int | None = None  # under which a batch may take it; None: any


@dataclass(frozen=True, slots=True)
class Gate:
    """How far sampling may run ahead of training."""

    groups_per_batch: int
    max_staleness: int
    extra: int = 0
    drop: bool = False  # groups that are opened too long ago

    @classmethod
    def of(cls, control: Control) -> "Gate":
        """The gate of a recipe."""
        return cls(
            control.groups_per_batch,
            control.max_staleness,
            control.over_provision,
            control.stale_groups == "drop",
        )

    def room(self, standing: GroupCounts, last_batch: int) -> int:
        """Groups to open now. Batches from `last_batch` on may not be prepared: the budget ends, or an evaluation is due."""
        further = 0 if self.extra else self.max_staleness
        ahead = (
            standing.step + 1 + further - standing.batches
        ) * self.groups_per_batch + self.extra
        wanted = (last_batch - standing.batches) * self.groups_per_batch
        if standing.step < standing.batches:
            # the batch is made: what it left over is enough until its policy is there
            ahead -= self.extra
        return max(0, min(ahead, wanted) - standing.in_hand)

    def min_step(self, standing: GroupCounts, position: int) -> int:
        """Oldest policy that may sample the group that comes `position` places after those in hand."""
        batch = standing.batches + (standing.in_hand + position) // self.groups_per_batch
        return max(0, min(standing.step, batch - self.max_staleness))

    def steps(self, standing: GroupCounts, position: int) -> PolicySteps:
        """The policies that matter to that group: too old to sample it, and too new to train on it (RollArt, card 42).

        What is opened now is for batches up to step + max_staleness, so a group that keeps pace is never too old.
        """
        last = standing.step + self.max_staleness if self.drop else None
        return PolicySteps(self.min_step(standing, position), last)
