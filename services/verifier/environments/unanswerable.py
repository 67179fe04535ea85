"""Actions that get no answer: what the system, and not the action, is to blame for."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from banyan.errors import InvalidInput, Refused, TemporaryError, users_code, with_place
from banyan.reasons import Reason

log = logging.getLogger(__name__)

_MOST_ATTEMPTS = 3  # of an action whose runner is lost
_MOST_KEPT = 4096


class Unanswerable(Exception):
    """An action that gets no answer, nor does any below its place.

    place: id of the segment that the action at the place ends with
    reason: one of `endings.REASONS`
    """

    def __init__(self, place: bytes, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.place, self.reason = place, reason


@contextmanager
def foreign(environment: str, action: bytes) -> Iterator[None]:
    """Turn whatever an environment raises in the block into Unanswerable.

    A path that came out otherwise when its actions were repeated has diverged; an environment that
    raises, or breaks its form, is itself at fault.
    """
    passing = (StopIteration, TemporaryError, Refused, InvalidInput, asyncio.CancelledError)
    try:
        with users_code(lambda error: f"raised {with_place(error)}", passing=passing):
            yield
    except Refused as error:
        has_diverged = error.reason == Reason.ENVIRONMENT_DIVERGED
        reason = Reason.ENVIRONMENT_DIVERGED if has_diverged else Reason.INFRASTRUCTURE
        raise Unanswerable(action, reason, str(error)) from error
    except InvalidInput as error:
        named = str(error).startswith("environment ")
        message = str(error) if named else f"environment {environment}: {error}"
        raise Unanswerable(action, Reason.ENVIRONMENT_FAULT, message) from error


class Places:
    """Places at which actions failed, in bounds: one that is forgotten is found again."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, Unanswerable] = OrderedDict()
        self._lost: OrderedDict[bytes, int] = OrderedDict()

    def check(self, path: Iterable[bytes]) -> None:
        """Raise Unanswerable if a place on the path of an action has ended."""
        for place in path:
            if place in self._ends:
                raise self._ends[place]

    def end(self, end: Unanswerable) -> None:
        """Note a place at and below which nothing acts any more."""
        log.warning("action %s gets no answer: %s: %s", end.place.hex()[:12], end.reason, end)
        self._ends[end.place] = end
        _bound(self._ends)

    def count(self, action: bytes, error: TemporaryError) -> None:
        """Count a runner that was lost. Raise Unanswerable at the last attempt of an action."""
        attempts = self._lost[action] = self._lost.pop(action, 0) + 1
        _bound(self._lost)
        if attempts >= _MOST_ATTEMPTS:
            del self._lost[action]
            raise Unanswerable(action, Reason.INFRASTRUCTURE, f"{attempts} times: {error}")


def _bound(kept: OrderedDict[bytes, Any]) -> None:
    while len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
