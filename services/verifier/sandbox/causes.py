"""Causes of attempts that end without an answer, seen from outside where that is possible.

What an attempt says of itself is believed only against it: a claim makes a wrong answer of it at
best. From a half of a limit on, an end is put down to the attempt and not to the machine.
"""

import errno
import os
import resource
import signal
from typing import Any

from banyan.programs.run import Outcome
from services.verifier.sandbox.confinement.processes import Ended
from services.verifier.sandbox.limits import THREADS, Limits

_CLAIMS = (Outcome.MEMORY, Outcome.EXITED, Outcome.DISK, Outcome.PROCESSES)
_BY_SIGNAL: dict[int, Outcome] = {signal.SIGXCPU: Outcome.CPU, signal.SIGXFSZ: Outcome.DISK}


def claimed(error: BaseException) -> Outcome | None:
    """Return the limit that an error comes from; None for an error of the scorer's own."""
    match error:
        case MemoryError():
            return Outcome.MEMORY
        case SystemExit():
            return Outcome.EXITED
        case OSError(errno=errno.EFBIG):
            return Outcome.DISK
        case OSError(errno=errno.EAGAIN):  # fork's, at the limit of processes
            return Outcome.PROCESSES
    return None


def parsed(claim: Any) -> Outcome:
    """Return the claim of an attempt's own frame; one that no attempt makes has just exited."""
    return Outcome(claim) if claim in _CLAIMS else Outcome.EXITED


def of(seen: Outcome | None, ended: Ended, limits: Limits) -> Outcome:
    """Return the cause of an attempt's end without an answer.

    seen: WALL at the deadline, OUTPUT for a frame beyond all bounds, the attempt's own claim, or
        None if it just ended.
    """
    crowded = 2 * ended.count >= max(limits.processes, THREADS)
    match seen:
        case None:
            return _ended_by_itself(ended, limits)
        case Outcome.WALL if crowded:
            return Outcome.PROCESSES
        case Outcome.WALL if 2 * ended.cpu_s >= limits.deadline_s:
            return Outcome.CPU
        case Outcome.PROCESSES if not crowded:
            return Outcome.LOST  # others of the user have them
    return seen


def _ended_by_itself(ended: Ended, limits: Limits) -> Outcome:
    number = signal_of(ended)
    if not number:
        return Outcome.EXITED
    if number == signal.SIGKILL:  # the kernel's, where memory is short: it takes the largest
        warm_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        large = 2 * (ended.peak_mb - warm_mb) >= limits.memory_mb
        return Outcome.MEMORY if large else Outcome.SIGNALLED
    return _BY_SIGNAL.get(number, Outcome.SIGNALLED)


def signal_of(ended: Ended) -> int:
    """Return the number of the signal that ended a process; 0 for none."""
    return os.WTERMSIG(ended.status) if os.WIFSIGNALED(ended.status) else 0
