"""Reasons that the store of a finished run may contain because of injected faults."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Allowed:
    """The allowed reasons of each kind, by their first word. None is allowed by default."""

    unscorable: Collection[str] = ()  # of scores
    dropped: Collection[
        str
    ] = ()  # of trees that no batch gave up and that the recipe does not give up
    refused: Collection[
        str
    ] = ()  # of events that came under a claim that was over, or after their tree's end
    late: Collection[str] = ()  # of scores
    dead: Collection[str] = ()  # of dead letters
    successors: bool = False  # more than one learner: later epochs, abandoned policies

    def reason(self, kind: str, said: str) -> bool:
        """Return True if this kind may have this reason."""
        words = said.replace(":", " ").split()
        return bool(words) and words[0] in getattr(self, kind)


NOTHING = Allowed()
# Who takes over from a learner that died makes the steps after its last checkpoint again.
SUCCEEDED = Allowed(successors=True)
# After a node died its claims are given anew, and what it still said under the old ones is refused.
KILLED = Allowed(refused=("STALE_EPOCH", "PARENT_REFUSED", "ORDINAL_TAKEN"), successors=True)
