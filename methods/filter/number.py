"""number: 1 if the completion holds exactly one number and that is the row's answer, else 0.

Exactly one: a completion that lists many numbers must not be right by luck, and one that goes on
after its answer is wrong. A number is an optional sign, digits (thousands may be parted by commas)
and an optional fraction; exponents are not read, so "1e3" is two numbers. A sign counts only if no
word or number stands before it: "3-4" is 3 and 4.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from banyan.plugins import Row, Scored, Unscorable, checks

_NUMBER = re.compile(
    r"(?:(?<![\w.)\]])[-+\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?",
    re.ASCII,
)
_LONGEST = 64  # digits; longer numbers are no answer, and converting them costs time


@dataclass(slots=True)
class Number:
    """Comparison of the completion's only number with a field of the row."""

    answer: str = "answer"
    """Field of the row that holds the right number."""
    tolerance: float = 0.0
    """Largest absolute difference that still counts as right."""
    take: str = "only"
    """Number that counts: the completion's only one (several are wrong), or its last."""

    name: str = field(default="number", init=False)
    version: str = field(default="1", init=False)

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return 1 or 0; UNSCORABLE if the row holds no number to compare with."""
        right = _decimal(row.get(self.answer))
        if right is None:
            return Unscorable(
                f"EXCEPTION: field {self.answer!r} of the row is "
                f"{checks.shown(row.get(self.answer))}, not a number"
            )
        answer = given(completion, self.take)
        return Scored(
            float(answer is not None and abs(answer - right) <= Decimal(str(self.tolerance)))
        )


def given(completion: str, take: str) -> Decimal | None:
    """Return the number that a completion gives as its answer; None without any."""
    numbers = _NUMBER.findall(completion)
    if not numbers or (take == "only" and len(numbers) > 1) or len(numbers[-1]) > _LONGEST:
        return None
    return _decimal(numbers[-1].replace("\u2212", "-").replace(",", ""))


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value).strip())
    except (InvalidOperation, ValueError):  # ValueError: an integer too long for text
        return None
    return number if number.is_finite() else None
