"""The protocols that plugins implement, one per axis (DESIGN 6). A plugin is one file of one idea.

Plugins are pure: they see recorded facts and return decisions. They never see tensors, weights, sockets or clocks.
Registered by entry point (`banyan.generate`, `banyan.filter`, `banyan.control`, `banyan.optimise`) or named as
module:attribute.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from banyan.draws import Draws
from banyan.segment import Finish, Sampling, Segment
from banyan.signals import NO_SIGNALS, Signals, Wanted
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

Transcript = str
Rewards = Mapping[Leaf, float | None]  # None: it could not be scored
Row = Mapping[str, Any]


# -- generate ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Branch:
    """A place in a tree: the ordinal-th continuation of the first `fork` tokens of `parent`."""

    parent: bytes
    fork: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Expansion:
    """Samples one segment at a branch.

    forced: tokens that are put first: a FORCED(BRANCH) segment at the branch, whose continuation at its end with ordinal 0
    is what is sampled. max_new_tokens counts sampled tokens only.
    """

    branch: Branch
    sampling: Sampling
    forced: tuple[int, ...] = ()
    signals: Wanted = NO_SIGNALS


@dataclass(frozen=True, slots=True)
class LeafMark:
    """Ends a path at a leaf, with the reason that people see: stop, length, repetition …"""

    leaf: Leaf
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a tree policy decides. `done` means that no branch will ever be asked for again."""

    expansions: tuple[Expansion, ...] = ()
    leaves: tuple[LeafMark, ...] = ()
    prunes: tuple[tuple[Branch, int], ...] = ()  # running branch, tokens to keep
    done: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """What spans trees and is decided by control; the only way it reaches a plan."""

    max_leaves: int | None = None
    step: int = 0  # optimizer steps before the tree was opened
    final: bool = False  # whether control will give no more; only where the policy says `needs_room`


@dataclass(frozen=True, slots=True)
class GrowthView:
    """What a tree policy sees: the tree so far, the branches in flight, the leaves marked, and the texts of segments."""

    tree: Tree
    seed: int
    max_path_tokens: int  # policy tokens that a path may hold at most
    in_flight: AbstractSet[Branch] = frozenset()
    leaves: Mapping[Leaf, str] = field(default_factory=dict)
    rewards: Rewards = field(default_factory=dict)  # of leaves marked; see TreePolicy.needs_scores
    sampling: Sampling = field(default_factory=Sampling)  # what the recipe asks for; a plan may change it

    @property
    def root(self) -> Segment:
        """The prompt. There is always one."""
        assert self.tree.root is not None
        return self.tree.root

    def policy_tokens(self, segment: Segment) -> int:
        """Tokens after the prompt on the path to the end of `segment`."""
        return self.tree.prefix_length(segment.id, len(segment)) - len(self.root)


Event = Literal["started", "ended", "ticked", "scored", "room"]


@dataclass(frozen=True, slots=True)
class News:
    """What a view holds since the last plan, or holds no more: segments, parents first; leaves that have their rewards;
    branches that were in flight and ended without a token."""

    segments: Sequence[Segment] = ()
    scored: Sequence[Leaf] = ()
    gone: Sequence[Branch] = ()


NOTHING_NEW = News()


class Planner(Protocol):
    """A plan of one tree that goes on as the tree grows. It begins with all that the view holds."""

    def plan(self, news: News = NOTHING_NEW) -> Plan:
        """What is new in the policy's plan. All that was said adds up to what `TreePolicy.plan` says of the view now."""
        ...


@dataclass(frozen=True, slots=True)
class Observation:
    """A token of a leaf's path where the head's score counts: the path's `at`-th POLICY token, from 0.

    kept: with what probability the path was let go on there, of those that could have been; the learner weights by 1/kept.
    """

    leaf: Leaf
    at: int
    kept: float = 1.0


class TreePolicy(Protocol):
    """Decides how a tree grows. `plan` is idempotent: called twice on the same view it returns the same plan.

    An expansion whose branch has a segment or is in flight already is ignored, so a plan may name all it ever wanted; a
    tree resumed from the store issues exactly the branches that are missing.

    A policy with `needs_scores = True` is asked again when leaves that it marked have their rewards, which the view then
    holds: the mean of the scorers' values, None where there is none (one could not score it, or the deadline passed).

    A policy with `needs_entropy = True` looks at segments' entropies; engines that cannot say them are refused.

    A policy with `needs_room = True` grows by rooms: `start` leaves at once, then as many in all as `room.max_leaves` says
    (None before control's first word), `most` of them at most. It is asked again with each new room, and is done only when
    the room is final, which it also is where control was silent for too long.

    A policy that asks for a learned head's score has `observations(tree, leaves) -> Sequence[Observation]`: what a tree
    can teach the head, from recorded facts. `needs_head = True`: it is nothing without one.
    """

    def plan(self, view: GrowthView, room: Room, rng: Draws) -> Plan:
        """What to do next."""
        ...


# -- filter --------------------------------------------------------------------------------------------------------------


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


# -- control -------------------------------------------------------------------------------------------------------------


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
    groups: tuple[GroupFacts, ...] = ()  # its newest facts, oldest of them first; at most `KEPT_GROUPS`
    longest_success: int | None = None  # tokens of the longest path ever with a reward of at least the curriculum's `right`
    solved: str = ""  # the newest answer with such a reward, for curricula that say `solved_chars`; of the newest rows only


KEPT_GROUPS = 4
KEPT_SOLVED = 4096  # rows
NO_STATS = RowStats()


@dataclass(frozen=True, slots=True)
class PromptStats:
    """The training rows and what is known of them: facts of the batches before `Budget.batches`, and no others."""

    rows: Sequence[Row]
    prompts: Sequence[str]  # the text of each row's prompt, made when it is asked for
    stats: Mapping[int, RowStats] = field(default_factory=dict)  # of rows that a group was opened for

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
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the tree policy, over those of the recipe: width …
    max_new_tokens: int | None = None
    messages: tuple[Mapping[str, str], ...] = ()  # {role, content}, put before the prompt and after its system message
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


# -- optimise ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupTrees:
    """The trees of one prompt row that are compared with each other, in order of index."""

    group_id: str
    trees: Sequence[TreeView]


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantage of each leaf of each tree of a group: `leaf_G_L[g][l]`, nan for leaves that take no part.

    A leaf-valued estimator fills `leaf_G_L` only. A node-valued one also fills `node_G_N[g][n]`, which then holds for the
    node's tokens on every path. `skip` says why the group teaches nothing (zero variance, too few leaves); empty if it does.
    `factor_G_N_T[g][n]`: what the advantage is multiplied by at each of a node's tokens, where the batch was shaped.
    """

    leaf_G_L: tuple[npt.NDArray[np.float64], ...]
    node_G_N: tuple[npt.NDArray[np.float64], ...] | None = None
    skip: str = ""
    factor_G_N_T: tuple[Sequence[npt.NDArray[np.float64]], ...] | None = None


class Estimator(Protocol):
    """Estimates advantages of a group of trees.

    An estimator with `whiten = True` asks that advantages are whitened over all trained path tokens of the batch. One with
    `factors(trees: Sequence[TreeView]) -> list[list[array]]` is asked once for the batch, with all trees that teach: the
    factor of each token of each node. `needs_logprobs`: it reads the behaviour log-probs of sampled tokens.
    """

    def estimate(self, group: GroupTrees) -> Advantages:
        """The group's advantages."""
        ...


__all__ = [
    "KEPT_GROUPS",
    "KEPT_SOLVED",
    "Advantages",
    "Allocation",
    "Branch",
    "Budget",
    "Curriculum",
    "Estimator",
    "Event",
    "Expansion",
    "Finish",
    "GroupFacts",
    "GroupScorer",
    "GroupTrees",
    "GrowthView",
    "LeafMark",
    "News",
    "Observation",
    "Plan",
    "Planner",
    "PromptStats",
    "Rewards",
    "Room",
    "RoomShare",
    "Row",
    "RowStats",
    "Sampling",
    "Scored",
    "Scorer",
    "Signals",
    "Transcript",
    "TreePolicy",
    "Unscorable",
    "Waiting",
    "Wanted",
]
