"""regex: 1 if the completion matches a regular expression, else 0.

A completion without anything that can be seen earns nothing, even where the pattern matches it.
Scored in a child process: a pattern may never end on some text.
"""

import re
from dataclasses import dataclass, field

from banyan.plugins import Row, Scored, Unscorable
from methods.filter.seen import seen


@dataclass(slots=True)
class Regex:
    """Search of the completion; with `equals`, its first group must be that field of the row."""

    pattern: str
    """Python regular expression, searched for anywhere in the completion; `.` matches line ends
    too."""
    equals: str = ""
    """Field of the row that the first group must equal as text; empty if the match alone counts."""

    name: str = field(default="regex", init=False)
    version: str = field(default="3", init=False)

    def __post_init__(self) -> None:
        try:
            compiled = re.compile(self.pattern, re.DOTALL)
        except re.error as error:
            raise ValueError(
                f"pattern {self.pattern!r} is not a regular expression: {error}"
            ) from None
        if self.equals and not compiled.groups:
            raise ValueError(
                f"pattern {self.pattern!r} has no group to compare with the row's {self.equals!r}"
            )

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return 1 or 0; UNSCORABLE if the row lacks the field to compare with."""
        if self.equals and self.equals not in row:
            return Unscorable(f"EXCEPTION: the row has no field {self.equals!r}")
        match = re.search(self.pattern, completion, re.DOTALL) if seen(completion) else None
        if match is None:
            return Scored(0.0)
        return Scored(float(not self.equals or match.group(1) == str(row[self.equals])))
