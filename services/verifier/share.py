"""One run's share of a verifier: so much at once, so much that waits, and the rest comes again."""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Something that waits: how many scores it owes, and how many bytes it holds."""

    @property
    def leaves(self) -> int: ...

    @property
    def bytes(self) -> int: ...


J = TypeVar("J", bound=Sized)
MOST_WAITING = 64  # messages of a run, so that it goes on without a turn of the broker's
MOST_BYTES = 8 << 20
_AGAIN_S = 2.0
_LATEST_AGAIN_S = 30.0


@dataclass
class Share(Generic[J]):
    """The messages of one run. No other run waits for them: each has as much.

    most: leaves under way below which more messages are begun.
    """

    most: int
    under_way: int = 0
    waiting: deque[J] = field(default_factory=deque)
    held: int = 0  # bytes that wait

    def offer(self, job: J) -> bool:
        """Whether there is room for it; it waits then."""
        full = len(self.waiting) >= MOST_WAITING or self.held + job.bytes > MOST_BYTES
        if self.waiting and full:
            return False
        self.waiting.append(job)
        self.held += job.bytes
        return True

    def begin(self) -> list[J]:
        """What is to be begun now, in order; it is under way from here on."""
        begun: list[J] = []
        while self.waiting and self.under_way < self.most:
            job = self.waiting.popleft()
            self.held -= job.bytes
            self.under_way += job.leaves
            begun.append(job)
        return begun

    def done(self, leaves: int) -> None:
        """Gives the room of what was under way back."""
        self.under_way -= leaves

    @property
    def idle(self) -> bool:
        """Whether nothing of the run is here."""
        return not self.under_way and not self.waiting


def again_s(attempts: int) -> float:
    """When a message for which there is no room comes again: later each time, since a slow run's backlog may be long."""
    return min(_AGAIN_S * 2.0 ** min(attempts - 1, 8), _LATEST_AGAIN_S)
