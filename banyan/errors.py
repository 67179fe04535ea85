"""Every error that Banyan raises on purpose.

BanyanError
├── PermanentError      trying again cannot help; say what to change
│   ├── InvalidInput    a value from a person or a peer is wrong
│   ├── NotFound        the thing named does not exist
│   ├── Refused         a rule of the protocol forbids it (stale epoch, second use, held-out row)
│   └── NotReady        asked for something that this version does not do yet
└── TemporaryError      the same call may succeed after `delay_s`
    └── DeadlineMissed  a wait ran out; names what it waited for
"""

import traceback

from banyan.reasons import Reason


class BanyanError(Exception):
    """Root of all errors that carry a message for a person: what was wrong, with the value, and the remedy."""

    reason: str = Reason.INTERNAL

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class PermanentError(BanyanError):
    """Trying again cannot help."""

    reason: str = Reason.PERMANENT


class InvalidInput(PermanentError, ValueError):
    """A value from a person or a peer is wrong."""

    reason: str = Reason.INVALID_INPUT


class NotFound(PermanentError, LookupError):
    """The thing named does not exist."""

    reason: str = Reason.NOT_FOUND


class Refused(PermanentError):
    """A rule of the protocol forbids it; `reason` says which rule (STALE_EPOCH, ALREADY_USED, HELD_OUT …)."""

    reason: str = Reason.REFUSED


class NotReady(PermanentError):
    """This version does not do that yet, and says so instead of pretending."""

    reason: str = Reason.NOT_IMPLEMENTED


class TemporaryError(BanyanError):
    """The same call may succeed after `delay_s` seconds."""

    reason: str = Reason.TEMPORARY

    def __init__(self, message: str, delay_s: float = 1.0, reason: str | None = None) -> None:
        super().__init__(message, reason)
        self.delay_s = delay_s


class DeadlineMissed(TemporaryError, TimeoutError):
    """A wait ran out; the message names what it waited for and for how long."""

    reason: str = Reason.DEADLINE_MISSED


def with_place(error: Exception) -> str:
    """What somebody else's code raised, and where: `ValueError: no such key (mine.py, line 5)`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
