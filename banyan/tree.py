"""Trees: segments by id under one prompt, and the leaves that end its paths.

A tree only grows; nothing is ever removed.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from banyan.environments.observation import Effect
from banyan.errors import InvalidInput
from banyan.segment import Floats, IntTokens, Kind, Segment


@dataclass(frozen=True, slots=True, order=True)
class Leaf:
    """End of a path: the first `end` tokens of a segment."""

    segment: bytes
    end: int


GIVEN = (Kind.PROMPT, Kind.TOOL)
"""Kinds of segments that a path is given; all others are its answer."""


class Tree:
    """Segments of one tree, indexed by parent.

    Raises InvalidInput on a segment that does not fit.
    """

    def __init__(self, tree_id: bytes, segments: Iterable[Segment] = ()) -> None:
        self.tree_id = tree_id
        self.segments: dict[bytes, Segment] = {}
        self.children: dict[bytes, list[Segment]] = {}
        self.root: Segment | None = None
        self._at: dict[tuple[bytes, int, int], Segment] = {}
        self._before: dict[bytes, int] = {}  # tokens on the path before a segment
        self._given: dict[bytes, int] = {}  # those of them that are prompt or answers
        self._outside: set[bytes] = set()  # answers to what changed something outside, and below
        for segment in segments:
            self.add(segment)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments.values())

    def __len__(self) -> int:
        return len(self.segments)

    def add(self, segment: Segment) -> None:
        """Add a segment whose parent is present. Adding the same segment again changes nothing."""
        if segment.id in self.segments:
            return
        self._check(segment)
        if not segment.parent:
            self.root = segment
        self.segments[segment.id] = segment
        self._at[segment.parent, segment.fork, segment.ordinal] = segment
        before, given = 0, 0
        if segment.parent:
            before = self.prefix_length(segment.parent, segment.fork)
            given = before - self.answer_length(segment.parent, segment.fork)
        self._before[segment.id], self._given[segment.id] = before, given
        if segment.parent in self._outside or _is_external(segment):
            self._outside.add(segment.id)
        insort(
            self.children.setdefault(segment.parent, []), segment, key=lambda s: (s.fork, s.ordinal)
        )

    def _check(self, segment: Segment) -> None:
        if segment.tree_id != self.tree_id:
            raise InvalidInput(
                f"segment {segment.id.hex()[:12]} belongs to tree {segment.tree_id.hex()[:12]}, "
                "not here"
            )
        if not segment.parent:
            if self.root is not None:
                raise InvalidInput(f"tree {self.tree_id.hex()[:12]} has a root already")
            return
        parent = self.segments.get(segment.parent)
        if parent is None:
            raise InvalidInput(
                f"parent {segment.parent.hex()[:12]} of segment {segment.id.hex()[:12]} is not in "
                "the tree"
            )
        if segment.fork > len(parent):
            raise InvalidInput(
                f"fork {segment.fork} is beyond the {len(parent)} tokens of its parent"
            )
        if self.at(segment.parent, segment.fork, segment.ordinal) is not None:
            raise InvalidInput(
                f"ordinal {segment.ordinal} at fork {segment.fork} of {segment.parent.hex()[:12]} "
                "is taken"
            )

    def at(self, parent: bytes, fork: int, ordinal: int) -> Segment | None:
        """Return the segment at (parent, fork, ordinal), the key that a resumed tree is compared
        by.

        Returns None if there is no such segment.
        """
        return self._at.get((parent, fork, ordinal))

    def forks_at(self, segment_id: bytes) -> bool:
        """Return whether a path may fork at or inside a segment.

        Not where something outside was changed on the path before: that cannot be copied.
        """
        return segment_id not in self._outside

    def lineage(self, segment_id: bytes) -> list[Segment]:
        """Return the path of segments from the root to `segment_id`, both included."""
        path: list[Segment] = []
        while segment_id:
            segment = self.segments[segment_id]
            path.append(segment)
            segment_id = segment.parent
        return path[::-1]

    def pieces(self, segment_id: bytes, end: int) -> list[tuple[Segment, int]]:
        """Return the path to (segment, end), root first, as pairs of segment and tokens on the
        path."""
        path = self.lineage(segment_id)
        ends = [child.fork for child in path[1:]] + [end]
        return list(zip(path, ends, strict=True))

    def prefix_length(self, segment_id: bytes, end: int) -> int:
        """Return the number of tokens from the root to (segment, end)."""
        return self._before[segment_id] + end

    def answer_length(self, segment_id: bytes, end: int) -> int:
        """Return the number of tokens from the root to (segment, end) that are neither of the
        prompt nor of an environment.
        """
        own = 0 if self.segments[segment_id].kind in GIVEN else end
        return self._before[segment_id] - self._given[segment_id] + own

    def context_length(self, segment_id: bytes, end: int) -> int:
        """Return the number of tokens from the root to the end of the prompt, or of the last
        answer of an environment, on the path to (segment, end).
        """
        segment = self.segments[segment_id]
        while segment.kind not in GIVEN:
            segment, end = self.segments[segment.parent], segment.fork
        return self.prefix_length(segment.id, end)

    def prefix_tokens(self, segment_id: bytes, end: int) -> IntTokens:
        """Return all token ids from the root to (segment, end)."""
        return np.concatenate(
            [s.tokens_T[:n] for s, n in self.pieces(segment_id, end)] or [np.zeros(0, np.int32)]
        )

    def prefix_logprobs(self, segment_id: bytes, end: int) -> Floats:
        """Return the behaviour log-probs along the path, 0 where a segment has none.

        The length equals that of `prefix_tokens`.
        """
        parts = [
            s.logprobs_T[:n] if len(s.logprobs_T) else np.zeros(n, np.float32)
            for s, n in self.pieces(segment_id, end)
        ]
        return np.concatenate(parts or [np.zeros(0, np.float32)])


def _is_external(segment: Segment) -> bool:
    receipt = segment.receipt
    return receipt is not None and receipt.observation.effect is Effect.EXTERNAL
