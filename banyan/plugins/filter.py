"""Scorers: what a completion of a row's prompt is worth, alone or among those of its group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Transcript = str
MOST_REPAIR = 16_384  # characters: a step, not another answer
_MOST_COUNTED = 2**31 - 1  # characters and steps: what messages hold
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Repair:
    """How a completion could be put right (SCOPE, card 38): its first `keep` characters are right, and `text` should follow.

    step: the first wrong step, from 1; steps: how many the completion has. A repair whose text is longer than `MOST_REPAIR`,
    or no valid text, is left out of its score, and the verifier's log says so; the value stays.
    """

    keep: int
    text: str
    step: int
    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text:
            raise ValueError(
                f"a repair's text is {self.text!r:.60}; give 1 to {MOST_REPAIR} characters"
            )
        if not 0 <= self.keep <= _MOST_COUNTED or not 1 <= self.step <= self.steps <= _MOST_COUNTED:
            raise ValueError(
                f"a repair keeps {self.keep} characters, and is of step {self.step} of {self.steps}"
            )

    def unsendable(self) -> str:
        """Why no message can carry its text; empty if one can. Not an error of its score, which may well be right."""
        if len(self.text) > MOST_REPAIR:
            return f"its text has more than {MOST_REPAIR} characters"
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            return f"its text holds half a character at {error.start}"
        return ""


@dataclass(frozen=True, slots=True)
class Scored:
    """A value, with its named parts, and for a wrong completion how it could be put right, if the scorer knows."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    repair: Repair | None = None


@dataclass(frozen=True, slots=True)
class Unscorable:
    """Why there is no value. Never a reward of 0."""

    reason: str
    retry: bool = False  # an infrastructure fault that may pass


# Scorers of one completion that are Banyan's own pure code, by the classes that their names must lead to: they alone run
# without the verifier's sandbox, whatever a plugin says of itself.
UNCONFINED: Mapping[str, str] = {
    "number": "methods.filter.number:Number",
    "steps": "methods.filter.steps:Steps",
}


def unconfined(name: str, scorer: object) -> bool:
    """Whether a scorer that was found by this name is one of those."""
    return UNCONFINED.get(name) == f"{type(scorer).__module__}:{type(scorer).__qualname__}"


class Scorer(Protocol):
    """Scores one completion. `UNCONFINED` alone decides where it runs."""

    name: str
    version: str

    def score(self, completion: Transcript, row: Row) -> Scored | Unscorable:
        """The score of a completion of a row's prompt."""
        ...


class GroupScorer(Protocol):
    """Scores all completions of a group together: majority, ranking. Pure: the same completions get the same scores.

    Completions come by index of their tree and then from left to right. Trees that were dropped have none.
    """

    name: str
    version: str

    def score_group(
        self, completions: Sequence[Transcript], row: Row
    ) -> Sequence[Scored | Unscorable]:
        """One score for each completion, in their order."""
        ...
