"""steps: right or wrong by the last number, and the repair of the first wrong step.

Paper: SCOPE, arXiv 2602.24110
Left out: the process reward model; an exact checker against the row's reference stands for it

Steps are lines (or separated by another delimiter), and the row holds those of a right solution, as
a list or as a text. The repair is the reference's step at the first difference: the checker also
stands for a teacher who knows the solution.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from banyan.plugins import Repair, Row, Scored, Unscorable
from methods.filter.number import Number


@dataclass(slots=True)
class Steps:
    """Comparison of the completion's last number, and its steps, with fields of the row."""

    compares: ClassVar[str] = "number"
    take: ClassVar[str] = "last"
    answer: str = "answer"
    """Field of the row that holds the right number."""
    reference: str = "solution"
    """Field of the row that holds the right steps."""
    delimiter: str = "\n"
    """Separator of steps."""

    name: str = field(default="steps", init=False)
    version: str = field(default="2", init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, str) or not self.delimiter:
            raise ValueError(f"delimiter must be a text that parts steps, got {self.delimiter!r}")

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return 1 or 0; a wrong completion has a repair if a step of it differs from the
        reference."""
        score = Number(self.answer, take="last").score(completion, row)
        if not isinstance(score, Scored) or score.value:
            return score
        right = row.get(self.reference)
        steps = right.split(self.delimiter) if isinstance(right, str) else right
        if not isinstance(steps, list) or not all(
            isinstance(step, str) and step.strip() for step in steps
        ):
            return Unscorable(
                f"EXCEPTION: field {self.reference!r} of the row is {right!r:.60}, not a list of "
                "steps"
            )
        return Scored(score.value, repair=repair(completion, steps, self.delimiter))


def repair(completion: str, right: list[str], delimiter: str) -> Repair | None:
    """Return the reference's step where the completion first differs from it, or ends before it.

    Returns None if it differs nowhere, or only after the reference's last step.
    """
    steps = list(_steps(completion, delimiter))
    for number, step in enumerate(right, 1):
        after = delimiter if number < len(right) else ""
        if number > len(steps):  # a right beginning whose end is missing
            before = "" if not completion or completion.endswith(delimiter) else delimiter
            return Repair(len(completion), before + step + after, number, number)
        start, text = steps[number - 1]
        if text.split() != step.split():
            return Repair(start, step + after, number, len(steps))
    return None


def _steps(completion: str, delimiter: str) -> Iterator[tuple[int, str]]:
    """Yield the start and the text of each step of a completion, without empty ones at the end."""
    start = 0
    for text in completion.rstrip().split(delimiter):
        yield start, text
        start += len(text) + len(delimiter)
