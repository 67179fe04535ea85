"""The log of executed plans: the view that a plan was made of, and what was new in the plan.

A record names the segments that entered the view since the last record, so that the view can be
made again from the stored tree; the record's digest confirms that it is the same. Draws are keyed
by the seed of the tree, so the same view gives the same plan. A plan that is too large for one
record goes on in the next ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from banyan.plugins import Branch, Expansion, GrowthBudget, GrowthView, LeafMark, Repaired
from banyan.segment import Sampling
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_from_wire, leaf_to_wire, sampling_to_wire
from services.rollout.growth import grants, plan_records
from services.rollout.growth.grants import BudgetGrant
from services.rollout.growth.spec import GrowSpec

PlanRecord = tree_pb2.PlanRecord
_MOST_PLANS = 4096  # records of a claim that the store keeps
_PLAN_BYTES = 60_000  # bytes of a record that the store keeps
_CLAIM_BYTES = 512 * 1024  # bytes of a claim's records that the store keeps


@dataclass(slots=True, kw_only=True)
class PlanLog:
    """The log of one claim. At its bounds it says that it is full and ends: it never has a gap.

    Fields hold what no record names yet:

    claim: epoch of the claim.
    segments: ids of segments, parents first.
    found: leaves that the store knew before the claim.
    gone: branches that ended without a token.
    rewards: rewards of leaves.
    repairs: repairs of the leaves in `rewards`.
    grant: growth budget that control granted.
    grant_lapsed: whether the tree ends because control is silent.
    """

    claim: int
    segments: list[bytes] = field(default_factory=list)
    found: list[Leaf] = field(default_factory=list)
    gone: list[Branch] = field(default_factory=list)
    rewards: dict[Leaf, float | None] = field(default_factory=dict)
    repairs: dict[Leaf, Repaired] = field(default_factory=dict)
    grant: BudgetGrant | None = None
    grant_lapsed: bool = False
    _number: int = field(init=False, default=0)
    _bytes: int = field(init=False, default=0)
    _is_done: bool = field(init=False, default=False)
    _is_full: bool = field(init=False, default=False)

    def record(
        self,
        view_digest: Callable[[], bytes],
        expansions: Sequence[Expansion],
        marks: Sequence[LeafMark],
        prunes: Sequence[tuple[Branch, int]],
        *,
        done: bool,
        dropped: Sequence[Leaf] = (),
    ) -> list[PlanRecord]:
        """Return the records of a plan, several for a large one; none if nothing in it was new, or
        if the log is full."""
        is_new = expansions or marks or prunes or dropped or (done and not self._is_done)
        if self._is_full or not is_new:
            return []
        leaves = [
            tree_pb2.PlannedLeaf(leaf=leaf_to_wire(mark.leaf), reason=mark.reason) for mark in marks
        ]
        plan = PlanRecord(
            claim_epoch=self.claim,
            number=self._number,
            view_digest=view_digest(),
            segments=self.segments,
            gone=[_branch_to_wire(branch) for branch in self.gone],
            found=[leaf_to_wire(leaf) for leaf in self.found],
            expansions=[expansion_to_wire(expansion) for expansion in expansions],
            leaves=leaves,
            prunes=[
                tree_pb2.PlannedPrune(branch=_branch_to_wire(branch), end=end)
                for branch, end in prunes
            ],
            done=done,
            rewards=[
                _reward_to_wire(leaf, value, self.repairs.get(leaf))
                for leaf, value in self.rewards.items()
            ],
            room=self.grant.to_wire() if self.grant is not None else None,
            room_lapsed=self.grant_lapsed,
            dropped=[leaf_to_wire(leaf) for leaf in dropped],
        )
        return self._keep(plan_records.parts(plan, _PLAN_BYTES), done)

    def _keep(self, parts: list[PlanRecord], done: bool) -> list[PlanRecord]:
        """Count the records of a plan and forget what they name; end the log if they do not fit."""
        sizes = [part.ByteSize() for part in parts]
        too_many = self._number + len(parts) >= _MOST_PLANS  # one is left to say that it is full
        too_large = max(sizes) > _PLAN_BYTES or self._bytes + sum(sizes) > _CLAIM_BYTES
        if too_many or too_large:
            self._is_full = True  # a gap could not be replayed, so this is the end
            return [PlanRecord(claim_epoch=self.claim, number=self._number, full=True)]
        self._number += len(parts)
        self._bytes += sum(sizes)
        self._is_done = done
        self.segments, self.found, self.gone = [], [], []
        self.rewards, self.repairs = {}, {}
        self.grant, self.grant_lapsed = None, False
        return parts


def views(spec: GrowSpec, whole: Tree, records: Sequence[PlanRecord]) -> Iterator[GrowthView]:
    """Yield the view of each plan of one claim, made from the stored tree.

    Raises KeyError where the tree lacks a segment.
    """
    tree = Tree(spec.tree_id)
    in_flight: set[Branch] = set()
    leaves: dict[Leaf, str] = {}
    rewards: dict[Leaf, float | None] = {}
    repairs: dict[Leaf, Repaired] = {}
    for record in plan_records.plans(records):
        for segment_id in record.segments:
            segment = whole.segments[segment_id]
            tree.add(segment)
            in_flight.discard(Branch(segment.parent, segment.fork, segment.ordinal))
        in_flight -= {branch_from_wire(ref) for ref in record.gone}
        leaves |= {leaf_from_wire(leaf): "" for leaf in record.found}
        for planned in record.rewards:
            leaf = leaf_from_wire(planned.leaf)
            rewards[leaf] = planned.value if planned.HasField("value") else None
            if planned.HasField("repair"):
                repairs[leaf] = _repair_from_wire(planned.repair)
        yield GrowthView(
            tree=tree,
            seed=spec.seed,
            max_path_tokens=spec.max_path_tokens,
            in_flight=frozenset(in_flight),
            leaves=dict(leaves),
            rewards=dict(rewards),
            sampling=spec.sampling,
            repairs=dict(repairs),
        )
        in_flight |= {branch_from_wire(planned.branch) for planned in record.expansions}
        leaves |= {leaf_from_wire(planned.leaf): planned.reason for planned in record.leaves}


def budgets(spec: GrowSpec, records: Sequence[PlanRecord]) -> Iterator[GrowthBudget]:
    """Yield the growth budget of each plan of one claim."""
    budget = GrowthBudget(step=spec.min_step)
    for record in plan_records.plans(records):
        if record.HasField("room"):
            budget = grants.from_wire(record.room).apply(budget)
        if record.room_lapsed:
            budget = replace(budget, final=True)
        yield budget


def branch_from_wire(ref: tree_pb2.BranchRef) -> Branch:
    """Read a branch of a record."""
    return Branch(ref.parent, ref.fork, ref.ordinal)


def expansion_to_wire(expansion: Expansion) -> tree_pb2.PlannedExpansion:
    """Return an expansion as a record has it."""
    origin = expansion.origin if expansion.forced else 0
    return tree_pb2.PlannedExpansion(
        branch=_branch_to_wire(expansion.branch),
        sampling=_sampling_to_wire(expansion.sampling),
        forced=expansion.forced,
        top=expansion.signals.top,
        semantic=expansion.signals.semantic,
        head=expansion.signals.head,
        origin=tree_pb2.SegmentOrigin.ValueType(origin),
    )


# A plan names the same few of them for all its branches; a message that takes one copies it.
@lru_cache(256)
def _sampling_to_wire(sampling: Sampling) -> tree_pb2.SamplingParams:
    return sampling_to_wire(sampling)


def _branch_to_wire(branch: Branch) -> tree_pb2.BranchRef:
    return tree_pb2.BranchRef(parent=branch.parent, fork=branch.fork, ordinal=branch.ordinal)


def _reward_to_wire(
    leaf: Leaf, value: float | None, repair: Repaired | None
) -> tree_pb2.PlannedReward:
    planned = tree_pb2.PlannedReward(leaf=leaf_to_wire(leaf), value=value)
    if repair is not None:
        planned.repair.CopyFrom(
            tree_pb2.PlannedRepair(
                place=leaf_to_wire(repair.place),
                tokens=repair.tokens,
                step=repair.step,
                steps=repair.steps,
            )
        )
    return planned


def _repair_from_wire(planned: tree_pb2.PlannedRepair) -> Repaired:
    place = leaf_from_wire(planned.place)
    return Repaired(place, tuple(planned.tokens), step=planned.step, steps=planned.steps)
