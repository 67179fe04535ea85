"""The delay before a process that ended is started again.

Pure: it follows from the times of its exits.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Exponential back-off: at once after the first exit, then twice as long each time.

    A process is given up after `limit` exits within `window_s`, or after as many, however slow,
    during which the run made no progress: a process that takes minutes to load before it dies would
    else be started for ever.
    """

    first_s: float = 0.2
    longest_s: float = 10.0
    limit: int = 8
    window_s: float = 120.0

    def delay_s(self, exits: Sequence[float], now: float, fruitless: int = 0) -> float | None:
        """Return the seconds to wait before the next start; None to give up.

        exits: monotonic times of the exits so far.
        now: monotonic time.
        fruitless: number of them since the run last made progress.
        """
        recent = [t for t in exits if now - t <= self.window_s]
        if len(recent) >= self.limit or fruitless >= self.limit:
            return None
        return min(self.first_s * 2.0 ** max(0, len(recent) - 1), self.longest_s)
