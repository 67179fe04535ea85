"""The pace of a run's work, and the delays after which refused messages come again.

A refused message should come when there is room for it: earlier it is refused once more, later the
run may have nothing to do. So delays follow the rate at which work ends.
"""

from dataclasses import dataclass, field

# Messages come at so many times the rate: were it measured by what comes alone, it could only fall.
_AHEAD = 2.0
_FIRST_RATE = 500.0  # weight a second, until the first second of work is over
_WINDOW_S = 1.0
_GLANCE_S = 0.1  # of the first window, after which what has ended says more than the guess
_LEAST_S = 0.05  # doubled with each attempt, while nothing has ended
_EARLY_S = 0.4  # at most, unless doubled so, while the rate is not known
LONGEST_S = 30.0


@dataclass
class Pace:
    """Rate of ended work, and the time from which the next refused message has room.

    Times are of a clock that never goes back, in seconds.
    """

    rate: float = _FIRST_RATE
    _since: float | None = field(default=None, init=False)
    _ended: int = field(default=0, init=False)
    _is_known: bool = field(default=False, init=False)
    _room_at: float = field(default=0.0, init=False)

    def ended(self, weight: int, now: float) -> None:
        """Count work that has ended.

        The first is not in the rate: it may have waited for the start of a process.
        """
        if self._since is None:
            self._since = now
            return
        self._ended += weight
        if (elapsed_s := now - self._since) >= _WINDOW_S:
            self.rate = max(self._ended, 1) / elapsed_s
            self._since, self._ended, self._is_known = now, 0, True

    def delay_s(self, weight: int, ahead: int, attempts: int, now: float) -> float:
        """Return the delay of a message that is refused.

        ahead: weight that has room and has not ended.
        """
        latest = now + (LONGEST_S if self._is_known else _EARLY_S)
        rate = _AHEAD * self._current(ahead, now)
        at = min(max(self._room_at, now + ahead / rate), latest)
        self._room_at = min(at + weight / rate, latest)
        least_s = _LEAST_S * 2.0 ** (min(attempts, 16) if self._since is None else 0)
        return min(max(at - now, least_s), LONGEST_S)

    def _current(self, ahead: int, now: float) -> float:
        """Return the rate, or a lower one if even all that is ahead would not make it."""
        elapsed_s = 0.0 if self._since is None else now - self._since
        if not self._is_known and elapsed_s > _GLANCE_S:
            return max(self.rate, self._ended / elapsed_s)  # a guess may be far too low
        if elapsed_s <= _WINDOW_S:
            return self.rate
        return min(self.rate, max(self._ended + ahead, 1) / elapsed_s)
