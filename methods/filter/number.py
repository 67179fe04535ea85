"""number: 1 if the completion holds exactly one number and that is the row's answer, else 0.

Exactly one: a completion that lists many numbers must not be right by luck, and one that goes on
after its answer is wrong. A number is an optional sign, digits (thousands may be parted by commas)
and an optional fraction; exponents are not read, so "1e3" is two numbers. A sign counts only if no
word or number stands before it: "3-4" is 3 and 4. The same holds for a point before the first
digit: ".5" is a half, and "is.5" is 5.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import ClassVar

from banyan.plugins import Row, Scored, Unscorable, checks

# It begins with a digit, so that the search passes over other text fast; what stands before that is
# looked at afterwards.
_NUMBER = re.compile(r"[0-9](?:[0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]*)(?:\.[0-9]+)?")
_MINUS = "-\u2212\ufe63\uff0d"
_WORD = re.compile(r"[\w.)\]]", re.ASCII)
_LONGEST = 64  # digits; longer numbers are no answer, and converting them costs time


@dataclass(slots=True)
class Number:
    """Comparison of the completion's only number with a field of the row."""

    compares: ClassVar[str] = "number"
    answer: str = "answer"
    """Field of the row that holds the right number."""
    tolerance: float = 0.0
    """Largest absolute difference that still counts as right."""
    take: str = "only"
    """Number that counts: the completion's only one (several are wrong), or its last."""

    name: str = field(default="number", init=False)
    version: str = field(default="2", init=False)

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return 1 or 0; UNSCORABLE if the row holds no number to compare with."""
        right = _decimal(row.get(self.answer))
        if right is None:
            return Unscorable(
                f"EXCEPTION: field {self.answer!r} of the row is "
                f"{checks.field_shown(row, self.answer)}, not a number"
            )
        answer = given(completion, self.take)
        return Scored(
            float(answer is not None and abs(answer - right) <= Decimal(str(self.tolerance)))
        )


def given(completion: str, take: str) -> Decimal | None:
    """Return the number that a completion gives as its answer; None without any."""
    last = None
    for number in _NUMBER.finditer(completion):
        if last is not None and take == "only":
            return None
        last = number
    if last is None or len(last[0]) > _LONGEST:
        return None
    return _decimal(_before(completion, last.start()) + last[0].replace(",", ""))


def _before(text: str, start: int) -> str:
    """Return what belongs to a number before its first digit: a sign, a point, both or nothing."""
    is_fraction = text[start - 1 : start] == "." and not _follows_word(text, start - 1)
    start -= is_fraction
    sign = text[start - 1 : start]
    is_negative = sign != "" and sign in _MINUS and not _follows_word(text, start - 1)
    return "-" * is_negative + "0." * is_fraction


def _follows_word(text: str, at: int) -> bool:
    return at > 0 and _WORD.match(text, at - 1) is not None


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value).strip())
    except (InvalidOperation, ValueError):  # ValueError: an integer too long for text
        return None
    return number if number.is_finite() else None
