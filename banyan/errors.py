"""Errors that Banyan raises on purpose.

BanyanError
├── PermanentError      retrying cannot help; the message says what to change
│   ├── InvalidInput    a value from a person or a peer is wrong
│   ├── NotFound        the named thing does not exist
│   ├── Refused         a rule of the protocol forbids it (stale epoch, second use, held-out row)
│   ├── NotReady        not implemented in this version
│   └── RunEnded        a run that was waited for ended without success
└── TemporaryError      the same call may succeed after `delay_s`
    └── DeadlineMissed  a wait timed out; the message names its condition
"""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from banyan.reasons import Reason
from banyan.text.printable import encodable

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_OWN = (
    *(os.path.join(_ROOT, package, "") for package in ("banyan", "methods", "services")),
    os.path.join(os.path.dirname(os.path.abspath(os.__file__)), ""),
    "<",
)


class BanyanError(Exception):
    """Root of all errors with a message for a person: the problem, the value, and the remedy.

    Messages quote texts of users and models, and travel: half characters in them are replaced.
    """

    reason: str = Reason.INTERNAL

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(encodable(message))
        if reason is not None:
            self.reason = reason


class PermanentError(BanyanError):
    """Error that retrying cannot cure."""

    reason: str = Reason.PERMANENT


class InvalidInput(PermanentError, ValueError):
    """Error of a wrong value from a person or a peer."""

    reason: str = Reason.INVALID_INPUT


class NotFound(PermanentError, LookupError):
    """Error of a name without a thing."""

    reason: str = Reason.NOT_FOUND


class Refused(PermanentError):
    """Error of a call that a rule of the protocol forbids; `reason` names the rule.

    Examples of reasons are STALE_EPOCH, ALREADY_USED, HELD_OUT.
    """

    reason: str = Reason.REFUSED


class NotReady(PermanentError):
    """Error of a feature that this version does not implement."""

    reason: str = Reason.NOT_IMPLEMENTED


class RunEnded(PermanentError):
    """Error of a run that was waited for and did not succeed; `run_id` and `state` say which."""

    def __init__(self, message: str, *, run_id: str, state: str) -> None:
        super().__init__(message)
        self.run_id, self.state = run_id, state


class TemporaryError(BanyanError):
    """Error of a call that may succeed after `delay_s` seconds."""

    reason: str = Reason.TEMPORARY

    def __init__(self, message: str, delay_s: float = 1.0, reason: str | None = None) -> None:
        super().__init__(message, reason)
        self.delay_s = delay_s


class DeadlineMissed(TemporaryError, TimeoutError):
    """Error of a wait that timed out; the message names its condition and its length."""

    reason: str = Reason.DEADLINE_MISSED


def with_kind(error: BaseException) -> str:
    """Return an error of foreign code with its kind: `ValueError: no such key`."""
    try:
        text = str(error)
    except Exception:  # an error class of a user may itself be wrong
        text = "an error whose text cannot be read"
    return encodable(f"{type(error).__name__}: {text}")


def users_place(error: BaseException) -> str:
    """Return where a user's own code raised an error: ` (mine.py, line 5, in reset)`, or "".

    That is the innermost place in a file that is neither Banyan's nor installed. No file is read.
    """
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if not (code.co_filename.startswith(_NOT_OWN) or "-packages" in code.co_filename):
            place = f" ({os.path.basename(code.co_filename)}, line {line}, in {code.co_name})"
    return encodable(place)


def with_place(error: BaseException) -> str:
    """Return an error of foreign code with its place: `ValueError: no such key (mine.py, line
    5)`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename}, line {frame.lineno}"
    return f"{with_kind(error)} ({encodable(place)})"


@contextmanager
def users_code(
    message: Callable[[BaseException], str],
    passing: tuple[type[BaseException], ...] = (BanyanError,),
) -> Iterator[None]:
    """Turn whatever a user's code raises in the block into InvalidInput.

    SystemExit too, which would otherwise end the command or the service without a word, and with
    success for `sys.exit()`. Only an interrupt by the keyboard passes.

    message: text for the error that it raised
    passing: errors that leave the block as they are
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except passing:
        raise
    except BaseException as error:  # a user's code may raise anything
        raise InvalidInput(message(error)) from error
