"""The nodes of a row as spans of places: a row is a forest in DFS order. Pure numpy.

A token sees its own node up to itself, and all of the nodes above. So a node's keys are seen by the queries of its whole
subtree, which lie in one run behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.learner.packing.packing import PackedSequence


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start..stop of one node, and the end of its subtree: stop..end see all of them."""

    start: int
    stop: int
    end: int

    @property
    def size(self) -> int:
        """Its own tokens."""
        return self.stop - self.start

    @property
    def below(self) -> int:
        """The tokens of its subtree that are not its own."""
        return self.end - self.stop


def spans(row: PackedSequence) -> list[Span]:
    """The row's nodes in order; what all blocks share is one node above them. A node and its only child are one."""
    found = [Span(0, row.trunk, len(row.token_N))] if row.trunk else []
    for start, stop in row.blocks:
        found += _of_block(row.enter_N[start:stop], row.leave_N[start:stop], start)
    return _joined(found)


def _of_block(enter_N: Any, leave_N: Any, at: int) -> list[Span]:
    starts = np.flatnonzero(np.diff(enter_N, prepend=enter_N[0] - 1))
    stops = np.append(starts[1:], len(enter_N))
    ends = np.searchsorted(enter_N, leave_N[starts], "right")
    return [
        Span(int(a) + at, int(b) + at, int(c) + at)
        for a, b, c in zip(starts, stops, ends, strict=True)
    ]


def _joined(found: Sequence[Span]) -> list[Span]:
    kept: list[Span] = []
    for span in found:
        if kept and kept[-1].stop == span.start and kept[-1].end == span.end:
            kept[-1] = Span(kept[-1].start, span.stop, span.end)
        else:
            kept.append(span)
    return kept
