"""python: a session of Python, whose variables stay from call to call.

A call is code between two marks, `<python>` and `</python>` by default. What it prints is the
answer; an exception is its traceback. The language is a subset of Python without files, network and
packages, whose clock stands still and whose random numbers are seeded, so that equal paths have
equal answers. Each branch goes on from the variables at its fork.
"""

import struct
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import ClassVar

from banyan.environments.observation import Effect, ToolOutcome
from banyan.environments.outcomes import TOOL_OUTCOMES, WORDS
from banyan.plugins import Row, checks
from banyan.plugins.environment import Answer
from banyan.programs.run import Limits
from banyan.programs.session import SessionResult, Task

_SEED = struct.Struct("<Q")
_SILENT = "(no output)"
_MOST_SECONDS = 60
_WORDS = {**WORDS, ToolOutcome.CRASHED: "error: the interpreter crashed"}


@dataclass(frozen=True)
class Python:
    """Answers with what a call prints."""

    begin: str = "<python>"
    """Mark before the code."""
    end: str = "</python>"
    """Mark behind it, with which the action ends."""
    seconds: float = 2.0
    """Processor time of a call; in a deterministic run one that uses it up has no answer."""
    memory_mb: int = 32
    """Memory of a session."""

    name: str = field(default="python", init=False)
    version: str = field(default="1", init=False)
    deterministic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be a text, got {getattr(self, name)!r}")
        checks.finite(self, ("seconds",))
        checks.whole(self, ("memory_mb",), 4, 1024)
        if not 0.01 <= self.seconds <= _MOST_SECONDS:
            raise ValueError(f"seconds must lie in 0.01..{_MOST_SECONDS}, got {self.seconds}")

    def about(self) -> str:
        """Return the text that tells a model of the session."""
        return (
            "You may run Python: what the code prints is the answer, and its variables stay for"
            " your next call. There are no files, no network and no packages. A call is"
            f" {self.begin}print(2 ** 10){self.end}"
        )

    def reset(self, row: Row, seed: int) -> bytes:
        """Return the state of a session without variables: the seed of its random numbers."""
        return _SEED.pack(seed % (1 << 64))

    def turn(self, state: bytes, action: str) -> Generator[Task, SessionResult, Answer]:
        """Yield the run of a call; return the answer to its result."""
        call, end, _ = action.rpartition(self.end)
        _, begin, code = call.rpartition(self.begin)
        if not end or not begin:
            text = f"error: no {self.begin}…{self.end}"
            return Answer(text, state, outcome=ToolOutcome.MALFORMED, effect=Effect.STATE)
        seed, session = _SEED.unpack_from(state)[0], state[_SEED.size :]
        # A wait is not possible, so beyond its processor time only a busy machine keeps it.
        limits = Limits(wall_s=10 * self.seconds, cpu_s=self.seconds, memory_mb=self.memory_mb)
        result = yield Task(code, session or None, limits, seed)
        outcome = TOOL_OUTCOMES[result.outcome]
        return Answer(
            _shown(result, outcome),
            _SEED.pack(seed) + (result.state or b""),
            outcome=outcome,
            effect=Effect.STATE,
        )


def _shown(result: SessionResult, outcome: ToolOutcome) -> str:
    parts = [part.decode(errors="replace") for part in (result.stdout, result.stderr)]
    if outcome in _WORDS:
        parts = [parts[0], _WORDS[outcome]]
    return "\n".join(part.rstrip("\n") for part in parts if part.strip()) or _SILENT
