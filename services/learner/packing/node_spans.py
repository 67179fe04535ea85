"""Nodes of a packed sequence as spans of places: a sequence is a forest in DFS order. Pure numpy.

A token attends to its own node up to itself, and to all nodes above. So the keys of a node are
visible to the queries of its whole subtree, which lie in one run behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import Ints


@dataclass(frozen=True, slots=True)
class Span:
    """The places of one node.

    start, stop: its own tokens.
    end: end of its subtree; the tokens stop..end attend to all of the node.
    """

    start: int
    stop: int
    end: int

    @property
    def size(self) -> int:
        """Number of its own tokens."""
        return self.stop - self.start

    @property
    def below(self) -> int:
        """Number of tokens of its subtree, without its own."""
        return self.end - self.stop


def spans(sequence: PackedSequence) -> list[Span]:
    """Return the nodes of a sequence in order.

    The trunk that all blocks share is one node above them. A node and its only child are merged.
    """
    nodes = [Span(0, sequence.trunk, len(sequence.token_U))] if sequence.trunk else []
    for start, stop in sequence.blocks:
        nodes += _of_block(sequence.enter_U[start:stop], sequence.leave_U[start:stop], start)
    return _merge_chains(nodes)


def _of_block(enter_U: Ints, leave_U: Ints, offset: int) -> list[Span]:
    starts = np.flatnonzero(np.diff(enter_U, prepend=enter_U[0] - 1))
    stops = np.append(starts[1:], len(enter_U))
    ends = np.searchsorted(enter_U, leave_U[starts], "right")
    return [
        Span(int(start) + offset, int(stop) + offset, int(end) + offset)
        for start, stop, end in zip(starts, stops, ends, strict=True)
    ]


def _merge_chains(nodes: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in nodes:
        last = merged[-1] if merged else None
        if last is not None and last.stop == span.start and last.end == span.end:
            merged[-1] = Span(last.start, span.stop, span.end)
        else:
            merged.append(span)
    return merged
