"""Steps of growth: the consequences of a change to a growing tree, and the leaves at its end."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from banyan import order, reward
from banyan.environments.endings import Ending
from banyan.plugins import Branch, LeafMark
from banyan.segment import Segment
from banyan.tree import Leaf, Tree
from services.rollout.engines.port import Request
from services.rollout.growth.plan_log import PlanRecord


@dataclass(frozen=True, slots=True)
class Call:
    """An action for the environment.

    action: id of its last segment.
    text: what it says.
    order: its place in logical order, as that of a request to the engine.
    """

    action: bytes
    text: str
    order: tuple[int, ...] = ()


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
    endings: proofs of new leaves whose last action gets no answer.
    """

    requests: tuple[Request, ...] = ()
    segments: tuple[Segment, ...] = ()
    leaves: tuple[LeafMark, ...] = ()
    aborts: tuple[Branch, ...] = ()
    grown: tuple[Leaf, ...] | None = None
    plans: Sequence[PlanRecord] = ()
    calls: tuple[Call, ...] = ()
    inside: tuple[Leaf, ...] = ()
    endings: Mapping[Leaf, Ending] = field(default_factory=dict)


def in_order(tree: Tree, leaves: Iterable[Leaf]) -> tuple[Leaf, ...]:
    """Return leaves by their places: the order of arrival depends on timing."""
    paths = order.paths(tree)
    return tuple(sorted(leaves, key=lambda leaf: order.at(paths, leaf.segment, leaf.end)))


def inside(tree: Tree, withdrawn: Collection[Leaf], leaves: Collection[Leaf]) -> tuple[Leaf, ...]:
    """Return the places that were scored as leaves and that paths to leaves go on from."""
    if not withdrawn:
        return ()
    above = {segment.id: (segment.parent, segment.fork) for segment in tree}
    return tuple(sorted(reward.inner(withdrawn, leaves, above)))


def open_calls(
    calls: Sequence[Branch], leaves: Collection[Leaf], tree: Tree
) -> tuple[list[Branch], list[Leaf]]:
    """Return the calls without an answer, and apart from them those that get none: their ends are
    leaves already.
    """
    places = {branch: Leaf(branch.parent, branch.fork) for branch in calls}
    without = [
        branch
        for branch, leaf in places.items()
        if leaf not in leaves and tree.at(branch.parent, branch.fork, branch.ordinal) is None
    ]
    return without, [leaf for leaf in places.values() if leaf in leaves]
