"""Sentences on why a tree has its shape: forks, cuts and prunes, from its executed plans. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from banyan.segment import Finish, Segment
from banyan.tree import Leaf
from banyan.v1 import tree_pb2

_Place = tuple[bytes, int, int]  # parent, fork and ordinal of a branch
_FINISHES = {
    Finish.LENGTH: "it reached the most tokens that a path may have",
    Finish.ABORTED: "the engine stopped it, for a new policy or a drain",
}
_ORIGINS = {
    tree_pb2.SEGMENT_ORIGIN_BRANCH: "chosen by the tree policy",
    tree_pb2.SEGMENT_ORIGIN_TEACHER: "of a repaired or taught prefix",
    tree_pb2.SEGMENT_ORIGIN_TEMPLATE: "of a hint",
}


@dataclass(slots=True)
class Plans:
    """Branches that the plans of a tree started, ended and pruned, by place.

    started: of a branch: words for its plan, the record of the expansion, and the branches that the
        plan started at the same place
    ended: reason of a leaf
    pruned: of a branch: words for its plan, and the tokens that it keeps
    """

    started: dict[_Place, tuple[str, tree_pb2.PlannedExpansion, int]] = field(default_factory=dict)
    ended: dict[Leaf, str] = field(default_factory=dict)
    pruned: dict[_Place, tuple[str, int]] = field(default_factory=dict)


def read(records: Iterable[tree_pb2.PlanRecord]) -> Plans:
    """Return the plans of a tree by place; the first record of a place counts."""
    plans = Plans()
    for record in records:
        name = f"plan {record.number} of claim {record.claim_epoch}"
        forks = Counter((e.branch.parent, e.branch.fork) for e in record.expansions)
        for expansion in record.expansions:
            place = _place(expansion.branch)
            plans.started.setdefault(place, (name, expansion, forks[place[:2]]))
        for leaf in record.leaves:
            plans.ended.setdefault(Leaf(leaf.leaf.segment, leaf.leaf.end), leaf.reason)
        for prune in record.prunes:
            plans.pruned.setdefault(_place(prune.branch), (name, prune.end))
    return plans


def _place(branch: tree_pb2.BranchRef) -> _Place:
    return branch.parent, branch.fork, branch.ordinal


def of_node(
    plans: Plans, segment: Segment, start: int, stop: int, *, siblings: int, is_leaf: bool
) -> str | None:
    """Return why tokens start..stop of a segment begin or end as they do; None if nothing special.

    siblings: nodes below the same parent, this one included
    """
    place = segment.parent, segment.fork, segment.ordinal
    words: list[str] = []
    if start == 0 and place in plans.started:
        words += _started(plans, place, siblings)
    elif start == 0 and siblings > 1 and segment.parent:
        words.append(f"one of {siblings} continuations after token {segment.fork} of its parent")
    if stop == len(segment):
        if place in plans.pruned:
            name, end = plans.pruned[place]
            words.append(f"{name} pruned it after {end} tokens")
        elif segment.finish is Finish.PRUNED:
            words.append("the tree policy pruned it")
        elif segment.finish in _FINISHES:
            words.append(_FINISHES[segment.finish])
    if is_leaf and (reason := plans.ended.get(Leaf(segment.id, stop))):
        cut = f", after {stop} of {len(segment)} sampled tokens" if stop < len(segment) else ""
        words.append(f"the tree policy ended the path{cut}: {reason}")
    return "; ".join(words) or None


def _started(plans: Plans, place: _Place, siblings: int) -> list[str]:
    name, expansion, beside = plans.started[place]
    words = []
    if siblings > 1 or beside > 1:
        most = f" of {beside} that it started there" if beside > 1 else ""
        words.append(f"{name} forked it off after token {place[1]} of its parent{most}")
    if expansion.forced:
        origin = _ORIGINS.get(expansion.origin, "that were put first")
        words.append(f"it begins with {len(expansion.forced)} tokens {origin}")
    return words


def document(plans: Plans, segment: Segment) -> dict[str, Any] | None:
    """Return the plan that started a segment, and what pruned it; None where no plan did."""
    place = segment.parent, segment.fork, segment.ordinal
    if place not in plans.started and place not in plans.pruned:
        return None
    found: dict[str, Any] = {"started": None, "pruned": None}
    if place in plans.started:
        name, expansion, beside = plans.started[place]
        found["started"] = {
            "plan": name,
            "fork": place[1],
            "ordinal": place[2],
            "beside": beside,
            "forced_tokens": len(expansion.forced),
            "temperature": round(expansion.sampling.temperature, 6),
            "max_new_tokens": expansion.sampling.max_new_tokens,
        }
    if place in plans.pruned:
        name, end = plans.pruned[place]
        found["pruned"] = {"plan": name, "kept_tokens": end}
    return found
