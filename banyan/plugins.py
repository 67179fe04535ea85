"""The protocols that plugins implement, one per axis (DESIGN 6). A plugin is one file of one idea.

Plugins are pure: they see recorded facts and return decisions. They never see tensors, weights, sockets or clocks.
Registered by entry point (`banyan.generate`, `banyan.filter`, `banyan.optimise`) or named as module:attribute.
"""

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class GrowthView:
    """What a tree policy sees: the tree so far, the branches in flight, the leaves marked, and the texts of segments."""

    tree: Tree
    seed: int
    max_path_tokens: int  # policy tokens that a path may hold at most
    in_flight: frozenset[Branch] = frozenset()
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
        return len(self.tree.prefix_tokens(segment.id, len(segment))) - len(self.root)


Event = Literal["started", "ended", "ticked", "scored", "room"]


class TreePolicy(Protocol):
    """Decides how a tree grows. `plan` is idempotent: called twice on the same view it returns the same plan.

    An expansion whose branch has a segment or is in flight already is ignored, so a plan may name all it ever wanted; a
    tree resumed from the store issues exactly the branches that are missing.

    A policy with `needs_scores = True` is asked again when leaves that it marked have their rewards, which the view then
    holds: the mean of the scorers' values, None where there is none (one could not score it, or the deadline passed).
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
    """

    leaf_G_L: tuple[npt.NDArray[np.float64], ...]
    node_G_N: tuple[npt.NDArray[np.float64], ...] | None = None
    skip: str = ""


class Estimator(Protocol):
    """Estimates advantages of a group of trees."""

    def estimate(self, group: GroupTrees) -> Advantages:
        """The group's advantages."""
        ...


__all__ = [
    "Advantages",
    "Branch",
    "Estimator",
    "Event",
    "Expansion",
    "Finish",
    "GroupTrees",
    "GrowthView",
    "LeafMark",
    "Plan",
    "Rewards",
    "Room",
    "Row",
    "Sampling",
    "Scored",
    "Scorer",
    "Signals",
    "Transcript",
    "TreePolicy",
    "Unscorable",
    "Wanted",
]
