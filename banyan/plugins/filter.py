"""Scorers: the value of a completion of a row's prompt, alone or among those of its group."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from banyan.programs.run import Result, Run

MOST_REWARD = 1e100  # of any score: squares and their sums stay finite
MOST_REPAIR = 16_384  # characters: enough for a step, not for another answer
_MOST_COUNTED = 2**31 - 1  # characters and steps: the range of the message's fields
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Repair:
    """Repair of a completion (SCOPE, arXiv 2602.24110): a right beginning and its next text.

    A repair whose text is longer than `MOST_REPAIR`, or is no valid text, is left out of its score
    with a line in the verifier's log; the value stays.

    keep: characters of the completion that are right
    text: text that should follow them
    step: number of the first wrong step, from 1
    steps: number of steps of the completion
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
        """Return the reason why no message can carry the text; empty if one can.

        It is no error of the score, which may well be right.
        """
        if len(self.text) > MOST_REPAIR:
            return f"its text has more than {MOST_REPAIR} characters"
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            return f"its text contains a lone surrogate at {error.start}"
        return ""


@dataclass(frozen=True, slots=True)
class Scored:
    """Value of a completion.

    value: the score
    parts: named parts of the score
    repair: for a wrong completion, its repair if the scorer knows one
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    repair: Repair | None = None


@dataclass(frozen=True, slots=True)
class Unscorable:
    """Missing value, for faults of scorer or system. It never counts as a reward of 0.

    reason: cause for people
    retry: whether it is an infrastructure fault that may pass
    """

    reason: str
    retry: bool = False


# Scorers of single completions, and of groups, that are Banyan's own pure code, with the classes
# that their names must lead to. They alone run without the verifier's sandbox, whatever a plugin
# declares; the verifier and tree policies that score within a node trust this one list.
UNCONFINED: Mapping[str, str] = {
    "number": "methods.filter.number:Number",
    "steps": "methods.filter.steps:Steps",
    "choice": "methods.filter.choice:Choice",
    "exact": "methods.filter.exact:Exact",
    "format": "methods.filter.format:Format",
    "length": "methods.filter.length:Length",
    "tool-calls": "methods.filter.tool_calls:ToolCalls",
}
UNCONFINED_GROUPS: Mapping[str, str] = {
    "majority": "methods.filter.majority:Majority",
    "vote": "methods.filter.vote:Vote",
    "head-vote": "methods.filter.head_vote:HeadVote",
}
VOTE, HEAD_VOTE = "vote", "head-vote"
"""Scorers that an evaluation with `eval.votes` adds: of each row one answer wins."""
# Scorers of Banyan's own whose pure code runs there, too, and asks for runs of foreign programs,
# which the verifier's jail runs.
EXAMINERS: Mapping[str, str] = {"code": "methods.filter.code:Code"}
# Scorers of Banyan's own of what an environment's answers along a stored path earned.
EARNINGS: Mapping[str, str] = {"environment": "methods.filter.environment:Environment"}


def unconfined(name: str, scorer: object) -> bool:
    """Return whether a scorer found under this name runs without the verifier's sandbox."""
    return UNCONFINED.get(name) == f"{type(scorer).__module__}:{type(scorer).__qualname__}"


class Scorer(Protocol):
    """Scorer of single completions. `UNCONFINED` alone decides where it runs.

    An optional attribute `wrong` is the value of a wrong answer, and so of one that ends its score;
    0 without it.

    A class that says `needs_transcript = True` has the path's turns as a third argument
    (`banyan.plugins.transcript`); so has a scorer of groups.
    """

    name: str
    version: str

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return the score of a completion of a row's prompt."""
        ...


class Examiner(Protocol):
    """Scorer that runs programs of a completion, each in a jail of its own. Pure.

    It alone knows the row; a program gets what its `Run` holds.
    """

    name: str
    version: str

    def examine(self, completion: str, row: Row) -> Generator[Run, Result, Scored | Unscorable]:
        """Yield runs one after the other, each for its result; return the score."""
        ...


class EarningsScorer(Protocol):
    """Scorer of the rewards that an environment gave along a path. Pure."""

    name: str
    version: str

    def score_rewards(self, rewards: Sequence[float]) -> Scored:
        """Return the score of the rewards of a path's answers, in their order."""
        ...


class GroupScorer(Protocol):
    """Scorer of all completions of a group together, such as a majority vote or a ranking.

    Pure: the same completions get the same scores. Completions come by index of their tree and then
    from left to right; dropped trees have none.

    A class that says `needs_heads = True` has, as a third argument, the last score of the policy's
    learned head on each path, None where it has none.
    """

    name: str
    version: str

    def score_group(self, completions: Sequence[str], row: Row) -> Sequence[Scored | Unscorable]:
        """Return a score for each completion, in their order."""
        ...
