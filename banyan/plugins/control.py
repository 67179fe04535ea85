"""Control: the next groups, and shares of the growth budget among trees.

A growth budget is the number of leaves that a tree may have. Its name in stored and sent data, in
recipes and in plugins is `room` (`control.rooms`, `needs_room`), which cannot change. The classes:

    RoomShare       the rule of a plugin: shares leaves among waiting trees
    Waiting         a tree that waits for its share, as the rule sees it
    GrowthBudget    the budget of one tree, as its tree policy sees it (`banyan.plugins.generate`)
    GrowthBudgets   the division in a run: which rounds are due, and their grants (gateway)
    TreeBudget      the known facts of a tree, for that division (gateway)
    BudgetRounds    the rounds of one run: reads facts, divides, stores grants (gateway)
    BudgetGrant     a stored grant, as a growing tree applies it (rollout)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from banyan.draws import Draws
from banyan.plugins.filter import Row

MOST_TREES = 1024  # of a group, in an allocation and in a recipe


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Outcome of a training group, known once a batch has taken the group or dropped it.

    ordinal: position of the group among the training groups
    row: index among the task's training rows
    batch: batch that took or dropped it; that batch made policy batch + 1
    rewards: rewards of its scored leaves
    lengths: sampled tokens on the paths to the same leaves
    """

    ordinal: int
    row: int
    batch: int
    rewards: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()

    @property
    def mean(self) -> float | None:
        """Mean reward; None if no leaf has one."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None


@dataclass(frozen=True, slots=True)
class RowStats:
    """History of one training row.

    opened: groups that got it
    closed: those of them with an outcome
    newest: newest ordinal that got it; -1 for none
    groups: its newest outcomes, oldest first; at most `KEPT_GROUPS`
    longest_success: tokens of the longest path ever with a reward of at least the curriculum's
        `right`
    solved: newest answer with such a reward, for curricula with `solved_chars`; kept for the newest
        `KEPT_SOLVED` rows
    """

    opened: int = 0
    closed: int = 0
    newest: int = -1
    groups: tuple[GroupFacts, ...] = ()
    longest_success: int | None = None
    solved: str = ""


KEPT_GROUPS = 4
KEPT_SOLVED = 4096  # rows
NO_STATS = RowStats()


@dataclass(frozen=True, slots=True)
class PromptStats:
    """Training rows and their history: outcomes of the batches before `Budget.batches` only.

    rows: training rows of the task
    prompts: text of each row's prompt, made on access
    stats: history of the rows that a group was opened for
    """

    rows: Sequence[Row]
    prompts: Sequence[str]
    stats: Mapping[int, RowStats] = field(default_factory=dict)

    def of(self, row: int) -> RowStats:
        """Return the history of a row."""
        return self.stats.get(row, NO_STATS)


@dataclass(frozen=True, slots=True)
class Budget:
    """Groups to fill, and the recipe's values without a curriculum.

    ordinals: training groups to fill; those before them have their rows
    batches: committed batches: outcomes are those of batches 0..batches-1
    groups_per_batch: groups that a batch takes
    trees: trees of a group
    max_new_tokens: sampled tokens of a path; an allocation may only ask for fewer
    settings: settings of the tree policy
    """

    ordinals: range
    batches: int
    groups_per_batch: int
    trees: int
    max_new_tokens: int
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Decision for one group. None and empty mean the recipe's value.

    row: index among the training rows
    trees: trees of the group
    settings: settings of the tree policy, over those of the recipe: width …
    max_new_tokens: sampled tokens of a path
    messages: {role, content}, put before the prompt and after its system message
    why: reason for people
    """

    row: int
    trees: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    messages: tuple[Mapping[str, str], ...] = ()
    why: str = ""


class Curriculum(Protocol):
    """Rule for the next training groups. Pure: equal facts, budget and seed give equal allocations.

    A curriculum with `fixed = True` uses no facts: an ordinal always gets the same allocation, in
    every process. Decisions of any other are stored before the first tree of the group is opened,
    and the stored decision holds: after a crash it is read, not made again.

    right: rewards of at least this count as successes in `RowStats`; 0.5 by default
    solved_chars: characters to keep of a successful answer of each row; none by default
    """

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """Return an allocation for each of `budget.ordinals`. `rng` has the run's seed."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """Tree that waits for growth budget: as many leaves as it was granted have ended.

    leaves: leaves of the tree
    rewards: rewards of those that could be scored
    """

    leaves: int
    rewards: tuple[float, ...] = ()


class RoomShare(Protocol):
    """Rule that shares leaves among waiting trees, one tree per prompt. Pure.

    Each prompt brings `rollouts` leaves to the pot. A tree's first leaves are its tree policy's
    `start`; the rest is granted in `phases` - 1 rounds of about the same size, among the trees of a
    block that wait.
    """

    rollouts: int
    phases: int

    def share(self, trees: Sequence[Waiting], budget: int, most: int, given: int) -> Sequence[int]:
        """Return how many of `budget` further leaves each tree gets, up to `most` in all.

        given: leaves of the block so far
        """
        ...
