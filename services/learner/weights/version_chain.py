"""The versions in a run's object store, oldest first: the form of the next, and what may go. Pure.

A chain is a whole version and the changes after it. A new node reads all of the last chain, so its
changes never come to more than half of a whole version. With three versions that can be rebuilt,
and one on its way, the store never holds more than four and a half whole ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.chassis.messaging.objects.object_format import Object
from services.chassis.weights.versions import Link

KEEP = 3  # newest versions that can be rebuilt, as many as the learner's folder holds
_SHARE = 0.5  # of a whole version: bound of all changes since
SLACK_BYTES = 64 << 20  # for messages and headers beside it


@dataclass(frozen=True, slots=True)
class Sent:
    """A version in the store: its place in the chain, and its object."""

    link: Link
    object: Object

    @property
    def whole(self) -> bool:
        """True if the version can be rebuilt from itself alone."""
        return self.link.parent is None


def limit_bytes(weights: int, slack: int = SLACK_BYTES) -> int:
    """Return the bytes that a store may hold whose versions have `weights` bytes."""
    return int((KEEP + 1 + _SHARE) * (weights + weights // 64)) + slack


def change_budget(stored: Sequence[Sent], weights: int, every: int) -> int:
    """Return the bytes that the changes of the next version may take; 0 where a whole one is due.

    weights: bytes of a whole version
    every: longest chain, in versions
    """
    chain = _last_chain(stored)
    if not chain or len(chain) >= every:
        return 0
    return max(0, int(_SHARE * weights) - sum(sent.object.size for sent in chain[1:]))


def _last_chain(stored: Sequence[Sent]) -> Sequence[Sent]:
    starts = [index for index, sent in enumerate(stored) if sent.whole]
    return stored[starts[-1] :] if starts else ()


def unneeded(stored: Sequence[Sent]) -> list[Sent]:
    """Return the versions that none of the newest is rebuilt from."""
    older = stored[: max(0, len(stored) - KEEP + 1)]
    starts = [index for index, sent in enumerate(older) if sent.whole]
    return list(stored[: starts[-1]]) if starts else []
