"""Right or wrong by the last number, and of a wrong completion the first step that is not the reference's (SCOPE, card 38).

Steps are lines (or what another delimiter parts), and the row holds those of a right way, as a list or as a text. The step
that stands there is the repair: an exact checker in the place of a process reward model, and a teacher who knows the way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from banyan.plugins import Repair, Row, Scored, Unscorable
from methods.filter.number import Number


@dataclass(slots=True)
class Steps:
    """Compares the completion's last number with a field of the row, and its steps with another."""

    answer: str = "answer"
    """Field of the row that holds the right number."""
    reference: str = "solution"
    """Field of the row that holds the right steps."""
    delimiter: str = "\n"
    """What parts steps."""

    name: str = field(default="steps", init=False)
    version: str = field(default="1", init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, str) or not self.delimiter:
            raise ValueError(f"delimiter must be a text that parts steps, got {self.delimiter!r}")

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """1 or 0; a completion that is wrong comes with its repair, if a step of it differs from the reference."""
        said = Number(self.answer, take="last").score(completion, row)
        if not isinstance(said, Scored) or said.value:
            return said
        right = row.get(self.reference)
        steps = right.split(self.delimiter) if isinstance(right, str) else right
        if not isinstance(steps, list) or not all(isinstance(step, str) and step.strip() for step in steps):
            return Unscorable(f"EXCEPTION: field {self.reference!r} of the row is {right!r:.60}, not a list of steps")
        return Scored(said.value, repair=repair(completion, steps, self.delimiter))


def repair(completion: str, right: list[str], delimiter: str) -> Repair | None:
    """The step that stands in the reference where the completion first differs from it, or ends before it; None where it
    differs nowhere, or only in what it says after the reference's last step."""
    steps = list(_steps(completion, delimiter))
    for number, step in enumerate(right, 1):
        after = delimiter if number < len(right) else ""
        if number > len(steps):  # what is there is right, and something is missing
            before = "" if not completion or completion.endswith(delimiter) else delimiter
            return Repair(len(completion), before + step + after, number, number)
        start, text = steps[number - 1]
        if text.split() != step.split():
            return Repair(start, step + after, number, len(steps))
    return None


def _steps(completion: str, delimiter: str) -> Iterator[tuple[int, str]]:
    """Where each step of a completion begins, and what it says; without empty ones at the end."""
    start = 0
    for text in completion.rstrip().split(delimiter):
        yield start, text
        start += len(text) + len(delimiter)
