"""tool-calls: the share of a path's calls that went well, if they are as many and such as wanted.

Formula: value = calls that count / calls; 0 outside of `at_least..at_most` calls, without one of
the `required` tools, or where nothing is said behind the last answer

It is computed from what environments recorded of each call, never from what a completion says of
itself. A call counts if it succeeded, or with `count: read` if it could be read at all.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from banyan.environments.observation import ToolOutcome
from banyan.plugins import Part, Row, Scored, Transcript, checks

_MOST_NAMES = 32
_MOST_CALLS = 1000
_OBJECT = re.compile(r'\{\s*"')
_JSON = json.JSONDecoder()
_COUNTS = ("ok", "read")


@dataclass(slots=True)
class ToolCalls:
    """Share of calls that went well. It reads no row."""

    at_least: int = 1
    """Calls below which a path has 0."""
    at_most: int = 0
    """Calls above which a path has 0; 0 for no bound."""
    required: Sequence[str] = ()
    """Tools that must have succeeded: the environment's name, or `"name"` of a call's object."""
    count: str = "ok"
    """Calls that count: ok, those that succeeded; or read, all that could be read as a call."""

    needs_transcript: ClassVar[bool] = True
    name: str = field(default="tool-calls", init=False)
    version: str = field(default="2", init=False)

    def __post_init__(self) -> None:
        checks.whole(self, ("at_least",), 1, _MOST_CALLS)
        checks.whole(self, ("at_most",), 0, _MOST_CALLS)
        if self.at_most and self.at_most < self.at_least:
            raise ValueError(
                f"at_most {self.at_most} is below at_least {self.at_least}; 0 is no bound"
            )
        if self.count not in _COUNTS:
            raise ValueError(
                f"count must be {' or '.join(_COUNTS)}, got {checks.shown(self.count)}"
            )
        names = self.required
        fit = isinstance(names, list | tuple) and len(names) <= _MOST_NAMES
        if not fit or not all(isinstance(name, str) and 0 < len(name) <= 64 for name in names):
            raise ValueError(
                f"required must be a list of up to {_MOST_NAMES} names of tools, got "
                f"{checks.shown(names)}"
            )

    def score(self, completion: str, row: Row, transcript: Transcript = ()) -> Scored:
        """Return the share, or 0; parts are the number of calls, and what went well of them."""
        calls = [part for part in transcript if part.observation is not None]
        good = [part for part in calls if _outcome(part) is ToolOutcome.OK]
        read = [part for part in calls if _outcome(part) is not ToolOutcome.MALFORMED]
        used = {name for part in good for name in _names(part)}
        had = sum(name in used for name in self.required)
        fits = self.at_least <= len(calls) and not 0 < self.at_most < len(calls)
        share = len(good if self.count == "ok" else read) / max(1, len(calls))
        wanted = fits and had == len(self.required) and bool(completion.strip())
        parts = {
            "calls": float(len(calls)),
            "ok": len(good) / max(1, len(calls)),
            "read": len(read) / max(1, len(calls)),
            "required": had / max(1, len(self.required)),
        }
        return Scored(share if wanted else 0.0, parts)


def _outcome(part: Part) -> ToolOutcome | None:
    return part.observation.outcome if part.observation is not None else None


def _names(part: Part) -> list[str]:
    """Return the names of a call's tool: that of its environment, and that in its text."""
    named = _named(part.call)
    return [*named, part.observation.environment] if part.observation is not None else named


def _named(call: str) -> list[str]:
    """Return the "name" of the last JSON object in a call; arguments within it are not meant."""
    name, at = None, 0
    while (begin := _OBJECT.search(call, at)) is not None:
        try:
            said, at = _JSON.raw_decode(call, begin.start())
        except (ValueError, RecursionError):
            at = begin.start() + 1
        else:
            name = said.get("name")
    return [name] if isinstance(name, str) else []
