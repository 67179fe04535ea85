"""Tree policies: their view of a tree, their plans, and the parties that they may ask."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from banyan.draws import Draws
from banyan.segment import Origin, Sampling, Segment
from banyan.signals import NO_SIGNALS, Wanted
from banyan.tree import Leaf, Tree

Rewards = Mapping[Leaf, float | None]  # None: unscorable


@dataclass(frozen=True, slots=True, order=True)
class Branch:
    """Place in a tree: the ordinal-th continuation of the first `fork` tokens of `parent`."""

    parent: bytes
    fork: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Repaired:
    """Repair of a leaf's path.

    place: place on the path up to which it is right
    tokens: tokens that should follow the place
    step: number of the first wrong step, from 1
    steps: number of steps of the path
    """

    place: Leaf
    tokens: tuple[int, ...]
    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Expansion:
    """Order to sample one segment at a branch.

    branch: place of the segment
    sampling: parameters of the draw; max_new_tokens counts sampled tokens only
    forced: tokens that are put first: a FORCED segment of `origin` at the branch, whose
        continuation at its end with ordinal 0 is the sampled one
    signals: signals that the engine should record
    origin: origin of forced tokens
    """

    branch: Branch
    sampling: Sampling
    forced: tuple[int, ...] = ()
    signals: Wanted = NO_SIGNALS
    origin: Origin = Origin.BRANCH


@dataclass(frozen=True, slots=True)
class LeafMark:
    """Order to end a path at a leaf, with a reason for people: stop, length, repetition …"""

    leaf: Leaf
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Decision of a tree policy.

    expansions: segments to sample
    leaves: paths to end
    prunes: running branches to stop, with the number of tokens to keep
    done: whether no further branch will ever be requested
    dropped: marked leaves that are leaves no more; where a path goes on, the score is the place's
        own
    calls: ends of actions that the environment shall answer, with ordinal 0
    """

    expansions: tuple[Expansion, ...] = ()
    leaves: tuple[LeafMark, ...] = ()
    prunes: tuple[tuple[Branch, int], ...] = ()
    done: bool = False
    dropped: tuple[Leaf, ...] = ()
    calls: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True)
class GrowthBudget:
    """Part of control's decisions that spans trees; its only way into a plan.

    max_leaves: leaves that the tree may have; None before control's first decision
    step: oldest step whose policy may sample the tree (`TreeSpec.min_step`)
    final: whether control will grant no more; set only for policies with `needs_room`
    """

    max_leaves: int | None = None
    step: int = 0
    final: bool = False


Room = GrowthBudget
"""Former name of GrowthBudget, kept for plugins."""


@dataclass(frozen=True, slots=True)
class GrowthView:
    """View of a growing tree for its tree policy.

    tree: segments so far
    seed: seed of the tree
    max_path_tokens: policy tokens that a path may hold at most
    in_flight: branches that are being sampled
    leaves: marked leaves with their reasons
    rewards: rewards of marked leaves; see TreePolicy.needs_scores
    sampling: the recipe's sampling; a plan may change it
    repairs: repairs of leaves with a reward, if a scorer knows one
    acting: ends of actions that wait for their answer
    """

    tree: Tree
    seed: int
    max_path_tokens: int
    in_flight: AbstractSet[Branch] = frozenset()
    leaves: Mapping[Leaf, str] = field(default_factory=dict)
    rewards: Rewards = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    repairs: Mapping[Leaf, Repaired] = field(default_factory=dict)
    acting: AbstractSet[Branch] = frozenset()

    @property
    def root(self) -> Segment:
        """Prompt segment of the tree; always present."""
        assert self.tree.root is not None
        return self.tree.root

    def policy_tokens(self, segment: Segment) -> int:
        """Return the tokens of the answer on the path to the end of `segment`."""
        return self.tree.answer_length(segment.id, len(segment))


@dataclass(frozen=True, slots=True)
class News:
    """Changes of a view since the last plan.

    segments: new segments, parents first
    scored: leaves whose rewards have arrived
    gone: branches that were in flight and ended without a token
    unanswered: ends of actions that get no answer; each is a leaf without a score already
    """

    segments: Sequence[Segment] = ()
    scored: Sequence[Leaf] = ()
    gone: Sequence[Branch] = ()
    unanswered: Sequence[Leaf] = ()


NOTHING_NEW = News()


class Planner(Protocol):
    """Incremental planner of one tree. It begins with all that the view holds."""

    def plan(self, news: News = NOTHING_NEW) -> Plan:
        """Return the new part of the plan.

        The parts together equal the result of `TreePolicy.plan` on the current view.
        """
        ...


@dataclass(frozen=True, slots=True)
class Observation:
    """Token of a leaf's path at which the learned head's score counts.

    leaf: leaf of the path
    at: index of the token among the path's POLICY tokens, from 0
    kept: probability with which the path was continued there, of those that could have been; the
        learner weights the observation by 1/kept
    """

    leaf: Leaf
    at: int
    kept: float = 1.0


class TreePolicy(Protocol):
    """Rule that decides how a tree grows. `plan` is idempotent: equal views give equal plans.

    An expansion whose branch has a segment or is in flight is ignored, so a plan may repeat all
    earlier requests; a tree resumed from the store issues exactly the missing branches.

    Its traits are those of `plugins.traits.PolicyTraits`, and these:

    observations: method (tree, leaves) -> Sequence[Observation] of policies that use the score of a
        learned head: the lessons of a tree for the head, from recorded facts
    toy: "one_fork" or "reconverging": the scripted model on which `banyan simulate` shows the
        policy's purpose
    """

    def plan(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Plan:
        """Return what to do next."""
        ...
