"""Groups dropped since the last batch: the sign of a run that can never go on, such as a model that no scorer can read."""

from dataclasses import dataclass

from services.gateway.control.gate import Standing

HOPELESS_BATCHES = 10  # batches' worth of dropped groups with none closed between; one bad batch is no reason to end a run


@dataclass(frozen=True, slots=True)
class Streak:
    """What was dropped when the last batch was committed. Only in memory: a restart counts from the restart."""

    batches: int = -1
    dropped: int = 0

    def after(self, standing: Standing) -> "Streak":
        """The streak as it stands now; a batch or a closed group ends it."""
        if standing.batches != self.batches or standing.closed:
            return Streak(standing.batches, standing.dropped)
        return self

    def hopeless(self, standing: Standing, groups_per_batch: int) -> bool:
        """Whether nothing but dropped groups came for too long."""
        return standing.dropped - self.dropped >= HOPELESS_BATCHES * groups_per_batch
