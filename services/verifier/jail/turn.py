"""A run of a worker under its limits: its output, its time, and its end from outside."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from typing import Literal

from banyan.programs.run import Limits, Outcome

_SOONEST_S = 0.001  # between two looks


class Turn:
    """A run under its limits. The worker's thread writes, another looks and ends.

    cause: the limit that it was ended for, if any.
    cpu_s: processor time of the worker up to the last look.
    wall_s: wall-clock time likewise.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._output = {"stdout": bytearray(), "stderr": bytearray()}
        self._lock = threading.Lock()  # so that no handle is used after it was closed
        self._handle: int | None = None
        self._clock = 0
        self._cpu_start = self._start = 0.0
        self.cause: Outcome | None = None
        self.cpu_s = self.wall_s = 0.0

    def begin(self, worker: int) -> None:
        """Begin in a worker's process. Raises OSError if it or this run has ended."""
        clock = (~worker << 3) | 2  # the processor time of a process, as clock_getcpuclockid says
        self._cpu_start, self._start = time.clock_gettime(clock), time.monotonic()
        with self._lock:
            if self.cause is not None:
                raise OSError(f"the run was ended before it began: {self.cause}")
            self._handle, self._clock = os.pidfd_open(worker), clock

    def write(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Keep what a program wrote, up to its limit; beyond that, end it."""
        kept, data = self._output[stream], text.encode(errors="replace")
        room = self._limits.output_bytes - len(kept)
        kept += data[:room]
        if len(data) > room:
            self.end(Outcome.OUTPUT)

    def look(self) -> float:
        """End the run if its time is over; return the seconds until the next look."""
        self._measure()
        cpu_left = self._limits.cpu_s - self.cpu_s
        wall_left = self._limits.wall_s - self.wall_s
        if cpu_left <= 0:
            self.end(Outcome.CPU)
        elif wall_left <= 0:
            self.end(Outcome.WALL)  # a session cannot sleep, so it had wanted to run
        return max(min(cpu_left, wall_left), _SOONEST_S)

    def end(self, cause: Outcome) -> None:
        """End the run with its worker, which is replaced."""
        with self._lock:
            if self.cause is None:
                self.cause = cause
            if self._handle is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def finish(self) -> None:
        """Take the last measures. Nothing ends the worker for this run any more."""
        self._measure()
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
            self._handle = None

    def output(self) -> tuple[bytes, bytes]:
        """Return stdout and stderr."""
        return bytes(self._output["stdout"]), bytes(self._output["stderr"])

    def _measure(self) -> None:
        if self._clock:
            self.wall_s = time.monotonic() - self._start
            with contextlib.suppress(OSError):  # it has ended; the last look counts
                self.cpu_s = time.clock_gettime(self._clock) - self._cpu_start


class Watch:
    """Looks at a run, as few as possible: the next when all of its time could be used up."""

    def __init__(self, turn: Turn, loop: asyncio.AbstractEventLoop) -> None:
        self._turn, self._loop = turn, loop
        self._next = loop.call_later(turn.look(), self._look)

    def _look(self) -> None:
        self._next = self._loop.call_later(self._turn.look(), self._look)

    def close(self) -> None:
        """Look no more."""
        self._next.cancel()
