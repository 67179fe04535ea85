"""The watch over one run: its deadline, its sums, and the parent's word."""

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from banyan.programs.run import Limits, Outcome
from services.verifier.jail.inside import guard, usage
from services.verifier.sandbox.confinement import processes

_LOOK_S = 0.02
_INTERPRETER_MB = 24  # of each process, mostly shared with the zygote
_REAP_S = 2.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run.

    cause: the limit that ended it; None if it ended by itself.
    status: exit status, or the negative number of a signal.
    cpu_s: processor time of all its processes.
    wall_s: wall-clock time.
    clean: nothing of it is left.
    """

    cause: Outcome | None
    status: int
    cpu_s: float
    wall_s: float
    clean: bool


def supervise(
    process: int,
    channel: socket.socket,
    limits: Limits,
    *,
    own: int = 0,
    full: Callable[[], bool] = lambda: False,
) -> Ended:
    """Wait until a run ends, and end it if it goes beyond its limits or the parent wishes it.

    own: processes of ours between the zygote and the run.
    full: whether the run's folder holds more than it may.
    """
    start = time.monotonic()
    cause = _wait(process, channel, replace(limits, processes=limits.processes + own), full)
    ended = processes.end(process, alone=False, within_s=_REAP_S)
    if cause is None and full():
        cause = Outcome.DISK
    if cause is Outcome.WALL and ended.cpu_s >= limits.cpu_s:
        cause = Outcome.CPU
    return Ended(
        cause=cause,
        status=os.waitstatus_to_exitcode(ended.status),
        cpu_s=ended.cpu_s,
        wall_s=time.monotonic() - start,
        clean=ended.clean,
    )


def _wait(
    process: int, channel: socket.socket, limits: Limits, full: Callable[[], bool]
) -> Outcome | None:
    """Return the limit that a run went beyond; None once it ended by itself."""
    deadline = time.monotonic() + limits.wall_s
    looks = sleeps = 0
    handle = os.pidfd_open(process)
    try:
        events = select.poll()
        events.register(handle, select.POLLIN)
        events.register(channel, select.POLLIN)
        while True:
            for ready, _ in events.poll(_LOOK_S * 1000):
                if ready == handle:
                    return None
                return _word(channel)
            if guard.is_lost():
                return Outcome.LOST
            reading = usage.of(processes.below(os.getpid()))
            looks, sleeps = looks + 1, sleeps + reading.asleep
            if (cause := _over(reading, limits)) or (cause := Outcome.DISK if full() else None):
                return cause
            if time.monotonic() > deadline:
                return Outcome.WAITED if sleeps * 2 > looks else Outcome.WALL
    finally:
        os.close(handle)


def _word(channel: socket.socket) -> Outcome:
    """Return the cause that the parent names; a closed channel ends the run, too."""
    word = channel.recv(64)
    return Outcome(word.decode()) if word else Outcome.LOST


def _over(reading: usage.Usage, limits: Limits) -> Outcome | None:
    if reading.cpu_s > limits.cpu_s:
        return Outcome.CPU
    if reading.memory > (limits.memory_mb + _INTERPRETER_MB * reading.processes) << 20:
        return Outcome.MEMORY
    if reading.processes > 1 + limits.processes:
        return Outcome.PROCESSES
    return None
