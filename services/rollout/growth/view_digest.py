"""Digest of a view: of everything that a plan may depend on, in whatever order it came.

The digest is the sum of the digests of its parts, so a change costs only what it changes: a tree of
n segments is planned about n times, and sorting all its segments each time would cost more than the
planning. The digest distinguishes views; it is no proof against forgery.
"""

import struct
from functools import lru_cache

from banyan.digest import blake, packed
from banyan.plugins import Branch, GrowthBudget, GrowthView, Repaired
from banyan.segment import Sampling
from banyan.tree import Leaf
from banyan.wire import segments

_MODULUS = 1 << 256


class ViewDigest:
    """The sum of the digests of a view's parts, which come and go."""

    def __init__(self, sum_of_parts: int = 0) -> None:
        self.sum = sum_of_parts

    def segment(self, segment_id: bytes) -> None:
        """Add a segment."""
        self._change(b"s", segment_id, 1)

    def in_flight(self, branch: Branch, by: int) -> None:
        """Add a branch in flight (1) or remove it (-1)."""
        place = packed(branch.parent) + struct.pack("<II", branch.fork, branch.ordinal)
        self._change(b"f", place, by)

    def leaf(self, leaf: Leaf, reason: str) -> None:
        """Add a marked leaf."""
        self._change(b"l", _place(leaf) + packed(reason.encode()), 1)

    def reward(self, leaf: Leaf, value: float | None, repair: Repaired | None = None) -> None:
        """Add a leaf's reward, None for one that will not come, with the repair if it is known."""
        part = b"" if value is None else struct.pack("<d", value)
        if repair is not None:
            numbers = (repair.place.end, repair.step, repair.steps, *repair.tokens)
            part += packed(repair.place.segment) + struct.pack(f"<{len(numbers)}i", *numbers)
        self._change(b"r", _place(leaf) + packed(part), 1)

    def _change(self, kind: bytes, part: bytes, by: int) -> None:
        self.sum = (self.sum + by * int.from_bytes(blake(kind, part), "little")) % _MODULUS


def parts(view: GrowthView) -> ViewDigest:
    """Return the sum for all parts of a view."""
    total = ViewDigest()
    for segment_id in view.tree.segments:
        total.segment(segment_id)
    for branch in view.in_flight:
        total.in_flight(branch, 1)
    for leaf, reason in view.leaves.items():
        total.leaf(leaf, reason)
    for leaf, value in view.rewards.items():
        total.reward(leaf, value, view.repairs.get(leaf))
    return total


def digest(
    view: GrowthView, sum_of_parts: int | None = None, budget: GrowthBudget | None = None
) -> bytes:
    """Return the BLAKE2b-256 of a view.

    sum_of_parts: sum for the view's parts; computed here if None.
    budget: growth budget that the plan is made within; it counts once control has granted one.
    """
    total = parts(view).sum if sum_of_parts is None else sum_of_parts
    return blake(
        b"banyan.view.v2",
        struct.pack("<QQ", view.seed, view.max_path_tokens),
        _sampling(view.sampling),
        total.to_bytes(32, "little"),
        _granted(budget),
    )


def _place(leaf: Leaf) -> bytes:
    return packed(leaf.segment) + struct.pack("<I", leaf.end)


@lru_cache(256)
def _sampling(sampling: Sampling) -> bytes:
    return packed(segments.sampling_to_wire(sampling).SerializeToString(deterministic=True))


def _granted(budget: GrowthBudget | None) -> bytes:
    """Return bytes for a budget, none before control granted any. The step is left out: it never
    changes."""
    if budget is None or (budget.max_leaves is None and not budget.final):
        return b""
    max_leaves = -1 if budget.max_leaves is None else budget.max_leaves
    return struct.pack("<q?", max_leaves, budget.final)
