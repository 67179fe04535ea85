"""Stops processes for a while, and takes that while out of times that were measured around it."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence


class Pauses:
    """The times during which the processes stood still."""

    def __init__(self) -> None:
        self._spans_ms: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def of(self, pids: Sequence[int]) -> Iterator[None]:
        """Stops these processes until the block ends."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        begun = 1000 * time.time()
        try:
            yield
        finally:
            self._spans_ms.append((begun, 1000 * time.time()))
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def live_ms(self, at_ms: float) -> float:
        """A time of the wall clock, less the pauses before it."""
        return at_ms - sum(min(at_ms, end) - begun for begun, end in self._spans_ms if begun < at_ms)
