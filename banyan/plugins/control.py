"""Control: which groups come next, and how room is shared out among trees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from banyan.draws import Draws
from banyan.plugins.filter import Row

MOST_TREES = 1024  # of a group: of an allocation, and of a recipe


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What a training group came to. A fact once a batch has taken the group, or given it up as teaching nothing."""

    ordinal: int
    row: int  # of the task's training rows
    batch: int  # the batch that took it or gave it up; that batch made policy batch + 1
    rewards: tuple[float, ...] = ()  # of its scored leaves
    lengths: tuple[int, ...] = ()  # sampled tokens on the paths to the same leaves

    @property
    def mean(self) -> float | None:
        """Mean reward; None where no leaf has one."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None


@dataclass(frozen=True, slots=True)
class RowStats:
    """What became of one training row so far."""

    opened: int = 0  # groups that got it
    closed: int = 0  # of these, groups that are facts
    newest: int = -1  # the newest ordinal that got it; -1 for none
    groups: tuple[
        GroupFacts, ...
    ] = ()  # its newest facts, oldest of them first; at most `KEPT_GROUPS`
    longest_success: int | None = (
        None  # tokens of the longest path ever with a reward of at least the curriculum's `right`
    )
    solved: str = ""  # the newest answer with such a reward, for curricula that say `solved_chars`; of the newest rows only


KEPT_GROUPS = 4
KEPT_SOLVED = 4096  # rows
NO_STATS = RowStats()


@dataclass(frozen=True, slots=True)
class PromptStats:
    """The training rows and what is known of them: facts of the batches before `Budget.batches`, and no others."""

    rows: Sequence[Row]
    prompts: Sequence[str]  # the text of each row's prompt, made when it is asked for
    stats: Mapping[int, RowStats] = field(
        default_factory=dict
    )  # of rows that a group was opened for

    def of(self, row: int) -> RowStats:
        """What became of a row."""
        return self.stats.get(row, NO_STATS)


@dataclass(frozen=True, slots=True)
class Budget:
    """What is to be filled, and what the recipe says without a curriculum."""

    ordinals: range  # training groups, those before them have their rows
    batches: int  # committed: the facts are those of batches 0..batches-1
    groups_per_batch: int
    trees: int  # of a group
    max_new_tokens: int  # of a path; an allocation may only ask for fewer
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the tree policy


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one group gets. None and empty mean: as the recipe says."""

    row: int
    trees: int | None = None
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the tree policy, over those of the recipe: width …
    max_new_tokens: int | None = None
    messages: tuple[
        Mapping[str, str], ...
    ] = ()  # {role, content}, put before the prompt and after its system message
    why: str = ""  # for people


class Curriculum(Protocol):
    """Decides what the next training groups are. Pure: the same facts, budget and seed give the same allocations.

    A curriculum with `fixed = True` looks at no facts: an ordinal always gets the same, in every process. What any
    other decides is stored before the first tree of the group is opened, and what is stored is what holds: after a crash it
    is read, not decided again. `right`: rewards of at least this count as successes in `RowStats`; 0.5 by default.
    `solved_chars`: characters that it wants of an answer that succeeded, of each row; none by default.
    """

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """One allocation for each of `budget.ordinals`. `rng` has the run's seed."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tree that waits for room: as many leaves as it was given have ended."""

    leaves: int
    rewards: tuple[float, ...] = ()  # of those that could be scored


class RoomShare(Protocol):
    """Shares leaves out among trees that wait for room, a tree a prompt. Pure.

    Each prompt brings `rollouts` leaves to the pot. A tree's first leaves are its tree policy's `start`; the rest is given
    in `phases` - 1 rounds of about the same size, in each of which those trees of a block take part that wait.
    """

    rollouts: int
    phases: int

    def share(self, trees: Sequence[Waiting], budget: int, most: int, given: int) -> Sequence[int]:
        """How many of `budget` further leaves each tree gets, up to `most` in all. `given`: leaves of the block so far."""
        ...
