"""The user's reward function: `def reward(completion: str, **row) -> float`. Always in a child process."""

import hashlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from banyan.plugins import Row, Scored, Unscorable


@dataclass(slots=True)
class UserFunction:
    """A plain function as a scorer. Its version is a digest of its file, so that lineage tells one state from the next."""

    function: Callable[..., Any]
    name: str
    version: str = field(init=False)
    safe: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.version = _version(self.function)

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """What the function returns; UNSCORABLE where that is not a finite number. What it raises is the caller's."""
        value = self.function(completion, **row)
        if isinstance(value, (Scored, Unscorable)):
            return value
        if not isinstance(value, Real) or not math.isfinite(float(value)):
            return Unscorable(f"NOT_A_NUMBER: {self.name} returned {value!r:.80}; it must return a finite number")
        return Scored(float(value))


def _version(function: Callable[..., Any]) -> str:
    source = inspect.getsourcefile(function)
    data = Path(source).read_bytes() if source and Path(source).is_file() else repr(function).encode()
    return hashlib.blake2b(data, digest_size=6).hexdigest()
