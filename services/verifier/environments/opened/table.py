"""The environments that are open in this process, by id, in bounds."""

import asyncio
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from banyan.errors import NotFound, TemporaryError
from banyan.reasons import Reason

_PROCESS = 8  # characters of an id that name its process
_SHOWN = 13  # characters of an id in messages
_FORM = re.compile(r"[0-9a-f]{8}-[\w-]{22}", re.ASCII)
_MOST_ENDS = 1024  # that are remembered


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of all open environments.

    number: of them.
    state_bytes: of their states in all; a fork counts as if it shared nothing.
    idle_s: time without a call after which one ends.
    """

    number: int = 4096
    state_bytes: int = 64 << 20
    idle_s: float = 600.0


@dataclass(slots=True)
class OpenEnvironment:
    """An environment between two actions.

    environment: who answers.
    state: what the next action finds.
    answer_chars: characters of an answer that a client gets.
    turns: actions that it may still have.
    done: whether its episode is over.
    used_at: time of the last call about it.
    line: calls about it, which are taken in order.
    over: set once it is no longer open.
    """

    environment: Any
    state: bytes
    answer_chars: int
    turns: int
    done: bool = False
    used_at: float = 0.0
    line: asyncio.Lock = field(default_factory=asyncio.Lock)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def copy(self) -> "OpenEnvironment":
        """Return a copy with a line of its own."""
        return replace(self, line=asyncio.Lock(), over=asyncio.Event())


class Table:
    """Open environments, the one without a call for longest first.

    clock: seconds that never go back.
    """

    def __init__(
        self, bounds: Bounds | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bounds, self._clock = bounds or Bounds(), clock
        self._process = secrets.token_hex(_PROCESS // 2)
        self._open: OrderedDict[str, OpenEnvironment] = OrderedDict()
        self._size = 0
        self._ends: OrderedDict[str, str] = OrderedDict()

    def add(self, made: OpenEnvironment) -> str:
        """Return the new id of an environment. Raises TemporaryError if there is no room."""
        self.check_room(len(made.state))
        key = f"{self._process}-{secrets.token_urlsafe(16)}"
        self._open[key] = made
        self._size += len(made.state)
        self._use(key)
        return key

    def get(self, key: str) -> OpenEnvironment:
        """Return an open environment, which is used by that. Raises NotFound."""
        self._end_idle()
        if key not in self._open:
            raise NotFound(self._missing(key))
        self._use(key)
        return self._open[key]

    def put(self, key: str, state: bytes) -> None:
        """Keep an environment's new state.

        Raises NotFound if it has ended, TemporaryError if there is no room.
        """
        kept = self.get(key)
        more = len(state) - len(kept.state)
        self._check_bytes(more)
        self._size += more
        kept.state = state

    def close(self, key: str) -> None:
        """Forget an environment. Raises NotFound."""
        self.get(key)
        self._end(key, "it was closed")

    def check_room(self, size: int = 0) -> None:
        """Raise TemporaryError if there is no room for one more, with a state of that size."""
        self._end_idle()
        if len(self._open) >= self._bounds.number:
            raise self._full(f"{self._bounds.number} environments are open")
        self._check_bytes(size)

    def _check_bytes(self, more: int) -> None:
        if more > 0 and self._size + more > self._bounds.state_bytes:
            raise self._full(f"open environments hold {self._size} bytes")

    def _full(self, what: str) -> TemporaryError:
        return TemporaryError(
            f"{what}, as many as this verifier holds: close some, or try again later; one without"
            f" a call for {self._bounds.idle_s:g} s ends",
            reason=Reason.TOO_MANY,
        )

    def _use(self, key: str) -> None:
        self._open[key].used_at = self._clock()
        self._open.move_to_end(key)

    def _end_idle(self) -> None:
        """End those that were not used for too long; one that is at work is in use."""
        last = self._clock() - self._bounds.idle_s
        while self._open:
            key, oldest = next(iter(self._open.items()))
            if oldest.used_at > last:
                return
            if oldest.line.locked():
                self._use(key)
            else:
                self._end(key, f"it had no call for {self._bounds.idle_s:g} s")

    def _end(self, key: str, why: str) -> None:
        ended = self._open.pop(key)
        ended.over.set()
        self._size -= len(ended.state)
        self._ends[key] = why
        if len(self._ends) > _MOST_ENDS:
            self._ends.popitem(last=False)

    def _missing(self, key: str) -> str:
        if not _FORM.fullmatch(key):
            return f"{shown(key)} is no id of an environment: take it from OpenEnvironment or Fork"
        if key in self._ends:
            return f"environment {shown(key)} is no longer open: {self._ends[key]}; open another"
        if not key.startswith(f"{self._process}-"):
            return (
                f"environment {shown(key)} is not of this verifier process ({self._process}): it"
                " was opened in another one, or before this one started. Keep one channel for all"
                " calls about an environment, or open another"
            )
        return f"there is no environment {shown(key)}: it ended long ago or never was; open another"


def shown(key: str) -> str:
    """Return the part of an id, or of whatever was sent as one, that messages may repeat."""
    return repr(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}…")
