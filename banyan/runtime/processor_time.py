"""Bounds of a process's own processor time."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Over(BaseException):
    """The time of a step is over. No `Exception`, as the library catches all of those."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise Over in the main thread once this process has run so long in the block.

    Time that it waits for others is not its own, so a busy machine changes nothing. It takes the
    process's ITIMER_PROF and SIGPROF.
    """

    def end(*_: object) -> None:
        raise Over

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
