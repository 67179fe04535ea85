"""The user's reward function as a scorer, always in a child process.

`def reward(completion: str, **row) -> float`, or for a whole group
`def reward(completions: list[str], **row) -> list[float]`, or TRL's form of that (`signatures.py`).
An `async def` is run to its end, in a loop of its own, within the score's deadline. A parameter
`transcript`, for a group `transcripts`, gets the turns of the path (`banyan.plugins.transcript`).
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

from banyan.errors import InvalidInput
from banyan.plugins import Row, Scored, Transcript, Unscorable
from services.verifier.filter import signatures


@dataclass(slots=True)
class UserFunction:
    """A plain function as a scorer.

    version: digest of the function's file, so that lineage distinguishes its states.
    needs_transcript: whether it has a parameter for the path's turns.
    """

    function: Callable[..., Any]
    name: str
    version: str = field(init=False)
    needs_transcript: bool = field(init=False)
    _waits: bool = field(init=False)

    TURNS: ClassVar[str] = "transcript"

    def __post_init__(self) -> None:
        if not callable(self.function):
            kind = type(self.function).__name__
            raise InvalidInput(
                f"{self.name} is a {kind}, not a function; it must be {signatures.ONE}"
            )
        self.version = _version(self.function)
        self.needs_transcript = self.TURNS in _parameters(self.function)[1:]
        self._waits = inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            type(self.function).__call__
        )

    @property
    def wrong(self) -> object:
        """Value of a wrong answer, as the function's owner may set it: `reward.wrong = -1.0`."""
        return getattr(self.function, "wrong", 0.0)

    def check(self, row: Row) -> None:
        """Raise InvalidInput if the function cannot take a completion and this row.

        The function is not called.
        """
        turns = {self.TURNS: ()} if self.needs_transcript else {}
        signatures.check(self.function, self.name, row, group=False, turns=turns)

    def score(self, completion: str, row: Row, transcript: Transcript = ()) -> Scored | Unscorable:
        """Return the function's value, UNSCORABLE unless finite. Raise the function's error."""
        return self._score(self._called(completion, row, transcript))

    def _called(self, first: object, row: Row, turns: object) -> Any:
        given = {self.TURNS: turns} if self.needs_transcript else {}
        return self._ran(self.function(first, **given, **row))

    def _ran(self, returned: Any) -> Any:
        """Return a value. Raise InvalidInput for one that nobody has run to its end."""
        value = _run_to_its_end(returned) if self._waits else returned
        if inspect.iscoroutine(value):
            value.close()  # or Python warns that it was never awaited
        elif not (inspect.isgenerator(value) or inspect.isasyncgen(value)):
            return value
        raise InvalidInput(
            f"{self.name} returned a {type(value).__name__}, not a value: is an `await` missing, "
            "or an `async` before its `def`?"
        )

    def _score(self, value: object) -> Scored | Unscorable:
        if isinstance(value, (Scored, Unscorable)):
            return value
        if not isinstance(value, Real) or not math.isfinite(float(value)):
            return Unscorable(
                f"NOT_A_NUMBER: {self.name} returned {value!r:.80}; it must return a finite number"
            )
        return Scored(float(value))


class UserGroupFunction(UserFunction):
    """A plain function as a scorer of whole groups."""

    TURNS: ClassVar[str] = "transcripts"

    def check(self, row: Row) -> None:
        """Raise InvalidInput if the function cannot take completions and this row."""
        turns = {self.TURNS: ()} if self.needs_transcript else {}
        signatures.check(self.function, self.name, row, group=True, turns=turns)

    def score_group(
        self, completions: Sequence[str], row: Row, transcripts: Sequence[Transcript] = ()
    ) -> list[Scored | Unscorable]:
        """Return the function's values, one score for each completion."""
        if signatures.is_trl(self.function):
            values = self._ran(self.function(**signatures.trl_arguments(completions, row)))
        else:
            values = self._called(list(completions), row, transcripts)
        return [self._score(value) for value in values]


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:
        return []  # a built-in function without a known signature


def _version(function: Callable[..., Any]) -> str:
    source = inspect.getsourcefile(function)
    if source and Path(source).is_file():
        data = Path(source).read_bytes()
    else:
        data = repr(function).encode()
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def _run_to_its_end(awaitable: Any) -> Any:
    import asyncio  # takes as long as all else that a scorer's process imports; few functions wait

    return asyncio.run(awaitable)
