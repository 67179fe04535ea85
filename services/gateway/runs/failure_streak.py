"""Groups in a row without a scored leaf: the sign of a run that can never go on.

An example is a model whose answers no scorer can read.
"""

from dataclasses import dataclass

from services.gateway.runs.staleness_gate import GroupCounts

# In batches' worth of groups, because one bad batch is no reason to end a run.
HOPELESS_BATCHES = 10


@dataclass(frozen=True, slots=True)
class Streak:
    """The counts at the time when a leaf was last scored.

    Only in memory: a restart counts from the restart.

    scored: scored leaves.
    over: groups that are over.
    dropped: groups dropped.
    """

    scored: int = -1
    over: int = 0
    dropped: int = 0

    def after(self, counts: GroupCounts) -> "Streak":
        """Return the streak after new counts; a closed tree with a scored leaf ends it."""
        if counts.scored != self.scored:
            return Streak(counts.scored, counts.over, counts.dropped)
        return self

    def hopeless(self, counts: GroupCounts, groups_per_batch: int) -> bool:
        """Return True if only dropped groups and groups without a scored leaf came for too long."""
        return counts.over - self.over >= HOPELESS_BATCHES * groups_per_batch

    def words(self, counts: GroupCounts) -> str:
        """Return a message about the groups that came instead."""
        over, dropped = counts.over - self.over, counts.dropped - self.dropped
        if over == dropped:
            return f"{over} groups in a row were dropped and none closed"
        return f"{over} groups in a row have no scored leaf"
