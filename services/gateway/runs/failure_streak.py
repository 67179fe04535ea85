"""Groups without a scored leaf in a row: the sign of a run that can never go on, such as a model that no scorer can read."""

from dataclasses import dataclass

from services.gateway.runs.staleness_gate import GroupCounts

# batches' worth of groups with no scored leaf between; one bad batch is no reason to end a run
HOPELESS_BATCHES = 10


@dataclass(frozen=True, slots=True)
class Streak:
    """What stood when a leaf was last scored. Only in memory: a restart counts from the restart."""

    scored: int = -1
    over: int = 0
    dropped: int = 0

    def after(self, standing: GroupCounts) -> "Streak":
        """The streak as it stands now; a closed tree with a scored leaf ends it."""
        if standing.scored != self.scored:
            return Streak(standing.scored, standing.over, standing.dropped)
        return self

    def hopeless(self, standing: GroupCounts, groups_per_batch: int) -> bool:
        """Whether nothing but dropped groups, and groups without a scored leaf, came for too long."""
        return standing.over - self.over >= HOPELESS_BATCHES * groups_per_batch

    def words(self, standing: GroupCounts) -> str:
        """What came instead."""
        over, dropped = standing.over - self.over, standing.dropped - self.dropped
        if over == dropped:
            return f"{over} groups in a row were dropped and none closed"
        return f"{over} groups in a row have no scored leaf"
