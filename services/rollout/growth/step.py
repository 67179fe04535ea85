"""Steps of growth: the consequences of a change to a growing tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.plugins import Branch, LeafMark
from banyan.segment import Segment
from banyan.tree import Leaf
from services.rollout.engines.port import Request
from services.rollout.growth.plan_log import PlanRecord


@dataclass(frozen=True, slots=True)
class Call:
    """An action for the environment: its last segment, and its text."""

    action: bytes
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthStep:
    """The consequences of a change.

    requests: segments to sample.
    segments: new segments of the tree, to publish.
    leaves: new leaves, to publish.
    aborts: running branches to stop.
    grown: all leaves of the grown tree; None until no branch will ever be requested again.
    plans: records of the plan that followed, for the log; none if nothing in it was new.
    calls: actions to have answered.
    inside: places of a grown tree that were marked and are no leaves, because paths go on there.
    """

    requests: tuple[Request, ...] = ()
    segments: tuple[Segment, ...] = ()
    leaves: tuple[LeafMark, ...] = ()
    aborts: tuple[Branch, ...] = ()
    grown: tuple[Leaf, ...] | None = None
    plans: Sequence[PlanRecord] = ()
    calls: tuple[Call, ...] = ()
    inside: tuple[Leaf, ...] = ()
