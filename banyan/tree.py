"""The tree: segments by id under one prompt, and the leaves that end its paths. Grows only; nothing is ever removed."""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from banyan.errors import InvalidInput
from banyan.segment import Floats, IntTokens, Segment


@dataclass(frozen=True, slots=True, order=True)
class Leaf:
    """The end of a path: the first `end` tokens of a segment."""

    segment: bytes
    end: int


class Tree:
    """Segments of one tree, indexed by parent. Raises InvalidInput on a segment that does not fit."""

    def __init__(self, tree_id: bytes, segments: Iterable[Segment] = ()) -> None:
        self.tree_id = tree_id
        self.segments: dict[bytes, Segment] = {}
        self.children: dict[bytes, list[Segment]] = {}
        self.root: Segment | None = None
        self._at: dict[tuple[bytes, int, int], Segment] = {}
        self._before: dict[bytes, int] = {}  # tokens on the path before a segment
        for segment in segments:
            self.add(segment)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments.values())

    def __len__(self) -> int:
        return len(self.segments)

    def add(self, segment: Segment) -> None:
        """Adds a segment whose parent is here already. Adding the same segment again changes nothing."""
        if segment.id in self.segments:
            return
        self._check(segment)
        if not segment.parent:
            self.root = segment
        self.segments[segment.id] = segment
        self._at[segment.parent, segment.fork, segment.ordinal] = segment
        self._before[segment.id] = (
            self.prefix_length(segment.parent, segment.fork) if segment.parent else 0
        )
        insort(
            self.children.setdefault(segment.parent, []), segment, key=lambda s: (s.fork, s.ordinal)
        )

    def _check(self, segment: Segment) -> None:
        if segment.tree_id != self.tree_id:
            raise InvalidInput(
                f"segment {segment.id.hex()[:12]} belongs to tree {segment.tree_id.hex()[:12]}, not here"
            )
        if not segment.parent:
            if self.root is not None:
                raise InvalidInput(f"tree {self.tree_id.hex()[:12]} has a root already")
            return
        parent = self.segments.get(segment.parent)
        if parent is None:
            raise InvalidInput(
                f"parent {segment.parent.hex()[:12]} of segment {segment.id.hex()[:12]} is not in the tree"
            )
        if segment.fork > len(parent):
            raise InvalidInput(
                f"fork {segment.fork} is beyond the {len(parent)} tokens of its parent"
            )
        if self.at(segment.parent, segment.fork, segment.ordinal) is not None:
            raise InvalidInput(
                f"ordinal {segment.ordinal} at fork {segment.fork} of {segment.parent.hex()[:12]} is taken"
            )

    def at(self, parent: bytes, fork: int, ordinal: int) -> Segment | None:
        """The segment at (parent, fork, ordinal), if it is there: the key that a resumed tree is compared by."""
        return self._at.get((parent, fork, ordinal))

    def lineage(self, segment_id: bytes) -> list[Segment]:
        """The path of segments from the root to `segment_id`, both included."""
        path: list[Segment] = []
        while segment_id:
            segment = self.segments[segment_id]
            path.append(segment)
            segment_id = segment.parent
        return path[::-1]

    def pieces(self, segment_id: bytes, end: int) -> list[tuple[Segment, int]]:
        """The path to (segment, end) as (segment, how many of its tokens belong to the path), root first."""
        path = self.lineage(segment_id)
        ends = [child.fork for child in path[1:]] + [end]
        return list(zip(path, ends, strict=True))

    def prefix_length(self, segment_id: bytes, end: int) -> int:
        """Tokens from the root to (segment, end)."""
        return self._before[segment_id] + end

    def prefix_tokens(self, segment_id: bytes, end: int) -> IntTokens:
        """All token ids from the root to (segment, end)."""
        return np.concatenate(
            [s.tokens_T[:n] for s, n in self.pieces(segment_id, end)] or [np.zeros(0, np.int32)]
        )

    def prefix_logprobs(self, segment_id: bytes, end: int) -> Floats:
        """Behaviour log-probs along the path, 0 where a segment has none; same length as `prefix_tokens`."""
        parts = [
            s.logprobs_T[:n] if len(s.logprobs_T) else np.zeros(n, np.float32)
            for s, n in self.pieces(segment_id, end)
        ]
        return np.concatenate(parts or [np.zeros(0, np.float32)])
