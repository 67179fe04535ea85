"""When a process that ended is started again. Pure: decided from the times of its exits."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """At once after the first exit, then twice as long each time.

    Given up after `limit` exits within `window_s`, or after as many, however slow, during which the run got nowhere: a
    process that takes minutes to load before it dies would else be started again for ever.
    """

    first_s: float = 0.2
    longest_s: float = 10.0
    limit: int = 8
    window_s: float = 120.0

    def delay_s(self, exits: Sequence[float], now: float, fruitless: int = 0) -> float | None:
        """Seconds to wait before the next start; None to give up.

        `exits`: monotonic times of the exits so far; `fruitless`: how many of them came since the run got anywhere.
        """
        recent = [t for t in exits if now - t <= self.window_s]
        if len(recent) >= self.limit or fruitless >= self.limit:
            return None
        return min(self.first_s * 2.0 ** max(0, len(recent) - 1), self.longest_s)
