"""exact: 1 if the completion is a field of the row letter for letter, else 0.

White space at both ends does not count.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from banyan.plugins import Row, Scored, Unscorable, checks
from methods.filter.seen import seen


@dataclass(slots=True)
class Exact:
    """Comparison of the whole completion with a field of the row."""

    compares: ClassVar[str] = "text"
    answer: str = "answer"
    """Field of the row that holds the right text, or a whole number."""

    name: str = field(default="exact", init=False)
    version: str = field(default="1", init=False)

    def __post_init__(self) -> None:
        checks.like("answer", self.answer, "")
        if not self.answer:
            raise ValueError("answer is empty; name the field of the row with the right text")

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return 1 or 0; UNSCORABLE if the row holds nothing to compare with."""
        right = _text(row.get(self.answer))
        if not seen(right):
            return Unscorable(
                f"EXCEPTION: field {self.answer!r} of the row is "
                f"{checks.field_shown(row, self.answer)}, not a text or a whole number"
            )
        return Scored(float(completion.strip() == right.strip()))


def _text(value: object) -> str:
    """Return the text of a value; empty if it has none to compare with."""
    return str(value) if isinstance(value, str) or type(value) is int else ""
