"""Scorers: what a completion of a row's prompt is worth, alone or among those of its group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Transcript = str
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """A value, with its named parts."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unscorable:
    """Why there is no value. Never a reward of 0."""

    reason: str
    retry: bool = False  # an infrastructure fault that may pass


class Scorer(Protocol):
    """Scores one completion. `safe` says that it is our own pure code and may run in the verifier's process."""

    name: str
    version: str
    safe: bool

    def score(self, completion: Transcript, row: Row) -> Scored | Unscorable:
        """The score of a completion of a row's prompt."""
        ...


class GroupScorer(Protocol):
    """Scores all completions of a group together: majority, ranking. Pure: the same completions get the same scores.

    Completions come by index of their tree and then from left to right. Trees that were dropped have none.
    """

    name: str
    version: str
    safe: bool

    def score_group(self, completions: Sequence[Transcript], row: Row) -> Sequence[Scored | Unscorable]:
        """One score for each completion, in their order."""
        ...
