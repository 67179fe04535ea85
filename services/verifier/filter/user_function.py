"""The user's reward function: `def reward(completion: str, **row) -> float`, or of a whole group:
`def reward(completions: list[str], **row) -> list[float]`. Always in a child process."""

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

_WANTED = "it must be def reward(completion: str, **row) -> float"


@dataclass(slots=True)
class UserFunction:
    """A plain function as a scorer. Its version is a digest of its file, so that lineage tells one state from the next."""

    function: Callable[..., Any]
    name: str
    version: str = field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidInput(
                f"{self.name} is a {type(self.function).__name__}, not a function; {_WANTED}"
            )
        self.version = _version(self.function)

    def check(self, row: Row) -> None:
        """Raises InvalidInput if the function cannot be called with a completion and this row. Does not call it."""
        if inspect.iscoroutinefunction(self.function) or inspect.isgeneratorfunction(self.function):
            raise InvalidInput(
                f"{self.name} is a coroutine or a generator, not a plain function; {_WANTED}"
            )
        try:
            signature = inspect.signature(self.function)
        except ValueError:
            return  # a built-in one that does not say what it takes
        try:
            signature.bind("", **row)
        except TypeError as error:
            fields = ", ".join(map(str, row))
            raise InvalidInput(
                f"{self.name}{signature} cannot take a row with {fields}: {error}; {_WANTED}"
            ) from None

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """What the function returns; UNSCORABLE where that is not a finite number. What it raises is the caller's."""
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
        """What the function returns, one score for each completion."""
        return [self._score(value) for value in self.function(list(completions), **row)]


def _version(function: Callable[..., Any]) -> str:
    source = inspect.getsourcefile(function)
    data = (
        Path(source).read_bytes() if source and Path(source).is_file() else repr(function).encode()
    )
    return hashlib.blake2b(data, digest_size=6).hexdigest()
