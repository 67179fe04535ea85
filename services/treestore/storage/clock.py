"""The store's clock: unix milliseconds that never go back, within a process or across restarts.

All deadlines of the lineage are compared with it alone, so that a wrong clock elsewhere decides
nothing.
"""

import time
from collections.abc import Callable

Clock = Callable[[], int]


class StoreClock:
    """A clock that starts at the wall clock, or at the last time at which the store was alive if
    that is later, and then runs monotonically.
    """

    def __init__(self, alive_ms: int = 0) -> None:
        self._start = time.monotonic()
        self._base = max(int(time.time() * 1000), alive_ms)

    def __call__(self) -> int:
        return self._base + int((time.monotonic() - self._start) * 1000)
