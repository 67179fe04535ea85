"""The staleness gate: the number of training groups to open now (docs/protocol.md, Staleness gate).

It decides on stored facts alone, so it cannot drift: groups to open = (step + 1 + max_staleness) x
groups per batch − consumed − in hand, where consumed is whole batches: a batch that closed short
leaves no debt behind. Dropped groups are in no term, so each gives its place back at once.

With over-provisioning (APRIL, Zhou et al. 2025, arXiv 2509.18521; ADR 014) it runs ahead by `extra`
groups instead of whole batches. A batch consists of the first groups that close; the others are cut
by its policy and go on first. No group is opened that no batch can take any more.
"""

from dataclasses import dataclass

from banyan.recipe import Control


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Counts of a run's training groups in the store. They may lag behind the log, never lead.

    step: newest policy step; may be below `batches` while a learner replays.
    batches: batches committed.
    open: groups that grow or are scored.
    closed: groups that no batch holds yet.
    dropped: groups dropped.
    opened: all groups; ordinals 0 to `opened` - 1 are stored.
    consumed: groups that a batch holds.
    scored: leaves with a value, of closed trees.
    leaves: all leaves of closed trees.
    """

    step: int
    batches: int
    open: int
    closed: int
    dropped: int = 0
    opened: int = 0
    consumed: int = 0
    scored: int = 0
    leaves: int = 0

    @property
    def in_hand(self) -> int:
        """Groups that a coming batch can still take."""
        return self.open + self.closed

    @property
    def over(self) -> int:
        """Groups that will not change any more."""
        return self.closed + self.consumed + self.dropped


@dataclass(frozen=True, slots=True)
class PolicySteps:
    """The policy steps that matter to a group.

    oldest: the oldest policy that may sample it.
    last: the newest policy under which a batch may take it; None for any.
    """

    oldest: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """The limit on how far sampling may run ahead of training.

    groups_per_batch: groups that a batch holds.
    max_staleness: steps.
    extra: groups of over-provisioning; 0 without.
    drop: drop groups that were opened too long ago.
    """

    groups_per_batch: int
    max_staleness: int
    extra: int = 0
    drop: bool = False

    @classmethod
    def of(cls, control: Control) -> "Gate":
        """Return the gate of a recipe."""
        return cls(
            groups_per_batch=control.groups_per_batch,
            max_staleness=control.max_staleness,
            extra=control.over_provision,
            drop=control.stale_groups == "drop",
        )

    def groups_to_open(self, counts: GroupCounts, last_batch: int) -> int:
        """Return the number of groups to open now.

        Batches from `last_batch` on may not be prepared: the budget ends, or an evaluation is due.
        """
        steps_ahead = 1 if self.extra else 1 + self.max_staleness
        batches_ahead = counts.step + steps_ahead - counts.batches
        ahead = batches_ahead * self.groups_per_batch + self.extra
        wanted = (last_batch - counts.batches) * self.groups_per_batch
        if counts.step < counts.batches:
            # The batch is made: the groups it left over are enough until its policy is there.
            ahead -= self.extra
        return max(0, min(ahead, wanted) - counts.in_hand)

    def min_step(self, counts: GroupCounts, position: int) -> int:
        """Return the oldest policy that may sample a group to be opened.

        position: number of groups to be opened before it.
        """
        batch = counts.batches + (counts.in_hand + position) // self.groups_per_batch
        return max(0, min(counts.step, batch - self.max_staleness))

    def steps(self, counts: GroupCounts, position: int) -> PolicySteps:
        """Return the policy steps that matter to that group.

        A policy may be too old to sample it, or too new to train on it (RollArt, arXiv 2512.22560;
        ADR 015). Groups opened now are for batches up to step + max_staleness, so one that keeps
        pace is never too old.
        """
        last = counts.step + self.max_staleness if self.drop else None
        return PolicySteps(self.min_step(counts, position), last)
