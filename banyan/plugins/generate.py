"""Tree policies: what they see of a tree, what they plan, and who is asked while it grows."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from banyan.draws import Draws
from banyan.segment import Origin, Sampling, Segment
from banyan.signals import NO_SIGNALS, Wanted
from banyan.tree import Leaf, Tree

Rewards = Mapping[Leaf, float | None]  # None: it could not be scored


@dataclass(frozen=True, slots=True, order=True)
class Branch:
    """A place in a tree: the ordinal-th continuation of the first `fork` tokens of `parent`."""

    parent: bytes
    fork: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Repaired:
    """How a leaf's path could be put right: the tokens that should follow `place`, a place on it.

    step: the first wrong step, from 1; steps: how many the path has.
    """

    place: Leaf
    tokens: tuple[int, ...]
    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Expansion:
    """Samples one segment at a branch.

    forced: tokens that are put first: a FORCED segment of `origin` at the branch, whose continuation at its end with ordinal
    0 is what is sampled. max_new_tokens counts sampled tokens only.
    """

    branch: Branch
    sampling: Sampling
    forced: tuple[int, ...] = ()
    signals: Wanted = NO_SIGNALS
    origin: Origin = Origin.BRANCH


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
    dropped: tuple[
        Leaf, ...
    ] = ()  # marked, and no leaves of the tree: where a path goes on, the score is the place's own


@dataclass(frozen=True, slots=True)
class GrowthBudget:
    """What spans trees and is decided by control; the only way it reaches a plan."""

    max_leaves: int | None = None
    step: int = 0  # optimizer steps before the tree was opened
    final: bool = (
        False  # whether control will give no more; only where the policy says `needs_room`
    )


Room = GrowthBudget
"""The name that plugins before knew it by."""


@dataclass(frozen=True, slots=True)
class GrowthView:
    """What a tree policy sees: the tree so far, the branches in flight, the leaves marked, and the texts of segments."""

    tree: Tree
    seed: int
    max_path_tokens: int  # policy tokens that a path may hold at most
    in_flight: AbstractSet[Branch] = frozenset()
    leaves: Mapping[Leaf, str] = field(default_factory=dict)
    rewards: Rewards = field(default_factory=dict)  # of leaves marked; see TreePolicy.needs_scores
    sampling: Sampling = field(
        default_factory=Sampling
    )  # what the recipe asks for; a plan may change it
    repairs: Mapping[Leaf, Repaired] = field(
        default_factory=dict
    )  # of leaves with a reward, where a scorer knows one

    @property
    def root(self) -> Segment:
        """The prompt. There is always one."""
        assert self.tree.root is not None
        return self.tree.root

    def policy_tokens(self, segment: Segment) -> int:
        """Tokens after the prompt on the path to the end of `segment`."""
        return self.tree.prefix_length(segment.id, len(segment)) - len(self.root)


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

    `width`, a whole number from 1 on: how many leaves a tree is expected to have, for deciding how many trees a node takes.

    `toy = "one_fork"` or `"reconverging"`: the scripted model on which `banyan simulate` shows what it is for.
    """

    def plan(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Plan:
        """What to do next."""
        ...


def width_of(policy: object) -> int:
    """How many leaves a policy's tree is expected to have: its `width`, or 1 without a whole number there."""
    width = getattr(policy, "width", 1)
    return width if isinstance(width, int) and width >= 1 else 1
