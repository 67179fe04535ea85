"""The log of executed plans: what a view was, and what was new in the plan that it caused (DESIGN 6).

A record names the segments that entered the view since the last one, so that the view can be made again from the stored
tree; its digest says whether it is the same. Draws are keyed by the tree's seed, so the same view gives the same plan.
A plan that is too large for one record goes on in the next ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from banyan.plugins import Branch, Expansion, GrowthBudget, GrowthView, LeafMark, Repaired
from banyan.segment import Sampling
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.wire import segments
from services.rollout.growth import plan_records
from services.rollout.growth.spec import GrowSpec

_MOST_PLANS, _PLAN_BYTES = 4096, 60_000  # what the store keeps of a claim, and of one plan
_CLAIM_BYTES = 512 * 1024


@dataclass(slots=True)
class PlanLog:
    """What one claim has to say of its plans. At its bounds it says that it is full and falls silent, never out of order."""

    claim: int
    fresh: list[bytes] = field(default_factory=list)  # segments that no record names yet
    found: list[Leaf] = field(default_factory=list)
    gone: list[Branch] = field(default_factory=list)
    rewards: dict[Leaf, float | None] = field(default_factory=dict)  # that no record names yet
    repairs: dict[Leaf, Repaired] = field(default_factory=dict)  # of those rewards
    room: tree_pb2.TreeRoom | None = None  # that no record names yet
    lapsed: bool = False  # the same of control's silence
    _number: int = 0
    _bytes: int = 0
    _done: bool = False
    _full: bool = False

    def record(
        self,
        view_digest: Callable[[], bytes],
        expansions: Sequence[Expansion],
        marks: Sequence[LeafMark],
        prunes: Sequence[tuple[Branch, int]],
        done: bool,
        dropped: Sequence[Leaf] = (),
    ) -> list[tree_pb2.PlanRecord]:
        """The records of a plan, more than one where it is large; none if nothing in it was new, or the log is full."""
        if (
            not (expansions or marks or prunes or dropped or (done and not self._done))
            or self._full
        ):
            return []
        plan = tree_pb2.PlanRecord(
            claim_epoch=self.claim,
            number=self._number,
            view_digest=view_digest(),
            segments=self.fresh,
            gone=[_ref(branch) for branch in self.gone],
            found=[segments.leaf_to_wire(leaf) for leaf in self.found],
            expansions=[_expansion(expansion) for expansion in expansions],
            leaves=[
                tree_pb2.PlannedLeaf(leaf=segments.leaf_to_wire(mark.leaf), reason=mark.reason)
                for mark in marks
            ],
            prunes=[tree_pb2.PlannedPrune(branch=_ref(branch), end=end) for branch, end in prunes],
            done=done,
            rewards=[
                _reward(leaf, value, self.repairs.get(leaf)) for leaf, value in self.rewards.items()
            ],
            room=self.room,
            room_lapsed=self.lapsed,
            dropped=[segments.leaf_to_wire(leaf) for leaf in dropped],
        )
        return self._kept(plan_records.parts(plan, _PLAN_BYTES), done)

    def _kept(self, parts: list[tree_pb2.PlanRecord], done: bool) -> list[tree_pb2.PlanRecord]:
        sizes = [part.ByteSize() for part in parts]
        over = self._number + len(parts) >= _MOST_PLANS  # the last place is for saying so
        if over or max(sizes) > _PLAN_BYTES or self._bytes + sum(sizes) > _CLAIM_BYTES:
            self._full = True  # a gap could not be replayed, so this is the end
            return [tree_pb2.PlanRecord(claim_epoch=self.claim, number=self._number, full=True)]
        self._number, self._bytes, self._done = (
            self._number + len(parts),
            self._bytes + sum(sizes),
            done,
        )
        self.fresh, self.found, self.gone, self.rewards, self.repairs = [], [], [], {}, {}
        self.room, self.lapsed = None, False
        return parts


@lru_cache(
    256
)  # a plan names the same few of them for all its branches; a message that takes one copies it
def _sampling(sampling: Sampling) -> tree_pb2.SamplingParams:
    return segments.sampling_to_wire(sampling)


def _ref(branch: Branch) -> tree_pb2.BranchRef:
    return tree_pb2.BranchRef(parent=branch.parent, fork=branch.fork, ordinal=branch.ordinal)


def _branch(ref: tree_pb2.BranchRef) -> Branch:
    return Branch(ref.parent, ref.fork, ref.ordinal)


def _reward(leaf: Leaf, value: float | None, repair: Repaired | None) -> tree_pb2.PlannedReward:
    planned = tree_pb2.PlannedReward(leaf=segments.leaf_to_wire(leaf), value=value)
    if repair is not None:
        place = segments.leaf_to_wire(repair.place)
        said = tree_pb2.PlannedRepair(
            place=place, tokens=repair.tokens, step=repair.step, steps=repair.steps
        )
        planned.repair.CopyFrom(said)
    return planned


def _repair(said: tree_pb2.PlannedRepair) -> Repaired:
    return Repaired(segments.leaf_from_wire(said.place), tuple(said.tokens), said.step, said.steps)


def _expansion(expansion: Expansion) -> tree_pb2.PlannedExpansion:
    return tree_pb2.PlannedExpansion(
        branch=_ref(expansion.branch),
        sampling=_sampling(expansion.sampling),
        forced=expansion.forced,
        top=expansion.signals.top,
        semantic=expansion.signals.semantic,
        head=expansion.signals.head,
        origin=tree_pb2.SegmentOrigin.ValueType(expansion.origin if expansion.forced else 0),
    )


def views(
    spec: GrowSpec, whole: Tree, records: Sequence[tree_pb2.PlanRecord]
) -> Iterator[GrowthView]:
    """The view of each plan of one claim, made from the stored tree. Raises KeyError where the tree lacks a segment."""
    seen = Tree(spec.tree_id)
    flying: set[Branch] = set()
    leaves: dict[Leaf, str] = {}
    rewards: dict[Leaf, float | None] = {}
    repairs: dict[Leaf, Repaired] = {}
    for record in plan_records.plans(records):
        for segment_id in record.segments:
            segment = whole.segments[segment_id]
            seen.add(segment)
            flying.discard(Branch(segment.parent, segment.fork, segment.ordinal))
        flying -= {_branch(ref) for ref in record.gone}
        leaves |= {segments.leaf_from_wire(leaf): "" for leaf in record.found}
        rewards |= {
            segments.leaf_from_wire(r.leaf): r.value if r.HasField("value") else None
            for r in record.rewards
        }
        repairs |= {
            segments.leaf_from_wire(r.leaf): _repair(r.repair)
            for r in record.rewards
            if r.HasField("repair")
        }
        most, sampling = spec.max_path_tokens, spec.sampling
        yield GrowthView(
            seen,
            spec.seed,
            most,
            frozenset(flying),
            dict(leaves),
            dict(rewards),
            sampling,
            dict(repairs),
        )
        flying |= {_branch(planned.branch) for planned in record.expansions}
        leaves |= {
            segments.leaf_from_wire(planned.leaf): planned.reason for planned in record.leaves
        }


def rooms(spec: GrowSpec, records: Sequence[tree_pb2.PlanRecord]) -> Iterator[GrowthBudget]:
    """The room of each plan of one claim."""
    room = GrowthBudget(step=spec.min_step)
    for record in plan_records.plans(records):
        if record.HasField("room"):
            room = given(room, record.room)
        if record.room_lapsed:
            room = replace(room, final=True)
        yield room


def given(room: GrowthBudget, by_control: tree_pb2.TreeRoom) -> GrowthBudget:
    """A room with what control gave."""
    return replace(room, max_leaves=by_control.leaves, final=by_control.final)
