"""Digest of a view: of all that a plan may depend on, whatever the order in which it came.

It is the sum of its parts' digests, so a change costs what it changes: a tree of n segments is planned some n times, and to
sort all its segments each time would cost more than to plan. It tells one view from another; it is no proof against forgery.
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
    """Parts that come and go."""

    def __init__(self, sum_of_parts: int = 0) -> None:
        self.sum = sum_of_parts

    def segment(self, segment_id: bytes) -> None:
        """A segment was added."""
        self._change(b"s", segment_id, 1)

    def flying(self, branch: Branch, by: int) -> None:
        """A branch took off (1) or landed (-1)."""
        place = packed(branch.parent) + struct.pack("<II", branch.fork, branch.ordinal)
        self._change(b"f", place, by)

    def leaf(self, leaf: Leaf, reason: str) -> None:
        """A leaf was marked."""
        self._change(
            b"l", packed(leaf.segment) + struct.pack("<I", leaf.end) + packed(reason.encode()), 1
        )

    def reward(self, leaf: Leaf, value: float | None, repair: Repaired | None = None) -> None:
        """A leaf's reward came, with how its path could be put right if that is known; or it will not come."""
        said = b"" if value is None else struct.pack("<d", value)
        if repair is not None:
            numbers = (repair.place.end, repair.step, repair.steps, *repair.tokens)
            said += packed(repair.place.segment) + struct.pack(f"<{len(numbers)}i", *numbers)
        self._change(b"r", packed(leaf.segment) + struct.pack("<I", leaf.end) + packed(said), 1)

    def _change(self, kind: bytes, part: bytes, by: int) -> None:
        self.sum = (self.sum + by * int.from_bytes(blake(kind, part), "little")) % _MODULUS


def parts(view: GrowthView) -> ViewDigest:
    """All parts of a view."""
    found = ViewDigest()
    for segment_id in view.tree.segments:
        found.segment(segment_id)
    for branch in view.in_flight:
        found.flying(branch, 1)
    for leaf, reason in view.leaves.items():
        found.leaf(leaf, reason)
    for leaf, value in view.rewards.items():
        found.reward(leaf, value, view.repairs.get(leaf))
    return found


def digest(
    view: GrowthView, sum_of_parts: int | None = None, room: GrowthBudget | None = None
) -> bytes:
    """BLAKE2b-256 of a view's numbers, the room that control gave if it did, and the sum of its parts, which is made here
    where it is not given."""
    total = parts(view).sum if sum_of_parts is None else sum_of_parts
    numbers = struct.pack("<QQ", view.seed, view.max_path_tokens)
    return blake(
        b"banyan.view.v2",
        numbers,
        _sampling(view.sampling),
        total.to_bytes(32, "little"),
        _given(room),
    )


@lru_cache(256)
def _sampling(sampling: Sampling) -> bytes:
    return packed(segments.sampling_to_wire(sampling).SerializeToString(deterministic=True))


def _given(room: GrowthBudget | None) -> bytes:
    """Empty before control said anything. The step is not in it: it never changes."""
    if room is None or (room.max_leaves is None and not room.final):
        return b""
    return struct.pack("<q?", -1 if room.max_leaves is None else room.max_leaves, room.final)
