"""When a process that ended is started again. Pure: decided from the times of its exits."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """At once after the first exit, then twice as long each time; given up after `limit` exits within `window_s`."""

    first_s: float = 0.2
    longest_s: float = 10.0
    limit: int = 8
    window_s: float = 120.0

    def delay_s(self, exits: Sequence[float], now: float) -> float | None:
        """Seconds to wait before the next start; None to give up. `exits`: monotonic times of the exits so far."""
        recent = [t for t in exits if now - t <= self.window_s]
        if len(recent) >= self.limit:
            return None
        return min(self.first_s * 2.0 ** max(0, len(recent) - 1), self.longest_s)
