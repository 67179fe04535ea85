"""What a run's object store holds, oldest first: what a new version is sent as, and what may go. Pure.

A whole version, then changes. A node that comes new reads all of the last chain, so its changes never come to more than half
of a whole version; and with three versions that can be rebuilt, and one on its way, the store never holds more than four
and a half whole ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.chassis.messaging.object_format import Object
from services.chassis.weights.versions import Link

KEEP = 3  # newest versions that can be rebuilt, as many as the learner's folder holds
_SHARE = 0.5  # of a whole version: what the changes since may come to
SLACK_BYTES = 64 << 20  # what messages and headers take beside it


@dataclass(frozen=True, slots=True)
class Sent:
    """A version as it lies in the store."""

    link: Link
    object: Object

    @property
    def whole(self) -> bool:
        """Whether it can be rebuilt from itself alone."""
        return self.link.parent is None


def limit_bytes(weights: int, slack: int = SLACK_BYTES) -> int:
    """Bytes that a store of versions of so many bytes may hold."""
    return int((KEEP + 1 + _SHARE) * (weights + weights // 64)) + slack


def room(held: Sequence[Sent], weights: int, every: int) -> int:
    """Bytes that the changes of the next version may come to; 0 where a whole one is due."""
    since = _last_chain(held)
    if not since or len(since) >= every:
        return 0
    return max(0, int(_SHARE * weights) - sum(one.object.size for one in since[1:]))


def _last_chain(held: Sequence[Sent]) -> Sequence[Sent]:
    starts = [index for index, one in enumerate(held) if one.whole]
    return held[starts[-1] :] if starts else ()


def unneeded(held: Sequence[Sent]) -> list[Sent]:
    """Those that none of the newest versions is rebuilt from."""
    starts = [index for index, one in enumerate(held[: max(0, len(held) - KEEP + 1)]) if one.whole]
    return list(held[: starts[-1]]) if starts else []
