"""The matrix products that make up the attention of a packed sequence. Pure numpy.

A long node has two: with itself, causally, and its keys with the queries of all nodes below it,
which lie in one run; no mask, no copy. Short nodes are grouped into units (units.py). A node above
a long one counts as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from services.learner.attention import units
from services.learner.attention.units import UnitStack
from services.learner.packing.node_spans import Span

LONG = 128  # least tokens of a node that has products of its own


@dataclass(frozen=True, slots=True)
class CausalRun:
    """Adjacent nodes of equal length that each attend to themselves, causally.

    start: first place.
    size: tokens of each node.
    count: number of nodes.
    """

    start: int
    size: int
    count: int

    @property
    def stop(self) -> int:
        """The place behind the last."""
        return self.start + self.size * self.count


@dataclass(frozen=True, slots=True)
class Matmuls:
    """The products of a sequence.

    own: long nodes with themselves.
    below: long nodes whose keys meet the queries below them.
    stacks: units of short nodes.
    """

    own: tuple[CausalRun, ...]
    below: tuple[Span, ...]
    stacks: tuple[UnitStack, ...] = ()


def plan(nodes: Sequence[Span], long: int = LONG) -> Matmuls:
    """Return the products of a sequence of nodes.

    Adjacent leaves of equal length that are not in units share one product.
    """
    whole = _whole(nodes, long)
    own: list[CausalRun] = []

    def kind(i: int) -> tuple[int, bool, bool]:
        return nodes[i].size, not nodes[i].below, whole[i]

    for (size, is_leaf, is_whole), members in groupby(range(len(nodes)), kind):
        run = [nodes[i] for i in members]
        if is_whole and is_leaf:
            own.append(CausalRun(run[0].start, size, len(run)))
        elif is_whole:
            own += [CausalRun(span.start, size, 1) for span in run]
    below = [span for span, is_whole in zip(nodes, whole, strict=True) if is_whole and span.below]
    return Matmuls(tuple(own), tuple(below), units.stacked(nodes, whole))


def _whole(nodes: Sequence[Span], long: int) -> list[bool]:
    """Tell of each node whether it, or one below it, is long."""
    whole = [span.size >= long for span in nodes]
    first_long = -1  # first place of the long nodes so far, from the back
    for i in reversed(range(len(nodes))):
        whole[i] = whole[i] or nodes[i].stop <= first_long < nodes[i].end
        first_long = nodes[i].start if whole[i] else first_long
    return whole


def long_pairs(matmuls: Matmuls) -> int:
    """Return the pairs of a query and a visible key, of the products of long nodes."""
    own = sum(run.count * run.size * (run.size + 1) // 2 for run in matmuls.own)
    return own + sum(span.size * span.below for span in matmuls.below)
