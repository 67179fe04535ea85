"""The user's reward function as a scorer, always in a child process.

`def reward(completion: str, **row) -> float`, or for a whole group
`def reward(completions: list[str], **row) -> list[float]`.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from banyan.plugins import Row, Scored, Unscorable

_FORM = "it must be def reward(completion: str, **row) -> float"


@dataclass(slots=True)
class UserFunction:
    """A plain function as a scorer.

    version: digest of the function's file, so that lineage distinguishes its states.
    """

    function: Callable[..., Any]
    name: str
    version: str = field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            kind = type(self.function).__name__
            raise InvalidInput(f"{self.name} is a {kind}, not a function; {_FORM}")
        self.version = _version(self.function)

    def check(self, row: Row) -> None:
        """Raise InvalidInput if the function cannot take a completion and this row.

        The function is not called.
        """
        if inspect.iscoroutinefunction(self.function) or inspect.isgeneratorfunction(self.function):
            raise InvalidInput(
                f"{self.name} is a coroutine or a generator, not a plain function; {_FORM}"
            )
        try:
            signature = inspect.signature(self.function)
        except ValueError:
            return  # a built-in function without a known signature
        try:
            signature.bind("", **row)
        except TypeError as error:
            fields = ", ".join(map(str, row))
            raise InvalidInput(
                f"{self.name}{signature} cannot take a row with {fields}: {error}; {_FORM}"
            ) from None

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return the function's value, UNSCORABLE unless finite. Raise the function's error."""
        return self._score(self.function(completion, **row))

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

    def score_group(self, completions: Sequence[str], row: Row) -> list[Scored | Unscorable]:
        """Return the function's values, one score for each completion."""
        return [self._score(value) for value in self.function(list(completions), **row)]


def _version(function: Callable[..., Any]) -> str:
    source = inspect.getsourcefile(function)
    if source and Path(source).is_file():
        data = Path(source).read_bytes()
    else:
        data = repr(function).encode()
    return hashlib.blake2b(data, digest_size=6).hexdigest()
