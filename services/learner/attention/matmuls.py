"""The products that are a row's attention. Pure numpy.

A long node has two: with itself, causally, and its keys with the queries of all that is below it, which lie in one run; no
mask, no copy. Short nodes are put together in units (units.py). A node above a long one counts as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from services.learner.attention import blocks
from services.learner.attention.blocks import Units
from services.learner.packing.node_spans import Span

LONG = 128  # tokens of a node from which on it has products of its own


@dataclass(frozen=True, slots=True)
class Own:
    """`count` adjacent nodes of `size` tokens each, from `start`: every one attends to itself, causally."""

    start: int
    size: int
    count: int

    @property
    def stop(self) -> int:
        """The place behind the last."""
        return self.start + self.size * self.count


@dataclass(frozen=True, slots=True)
class Calls:
    """All of a row's products: long nodes with themselves and with the queries below them, and units of short nodes."""

    own: tuple[Own, ...]
    below: tuple[Span, ...]
    stacks: tuple[Units, ...] = ()


def calls(found: Sequence[Span], long: int = LONG) -> Calls:
    """The row's products. Adjacent leaves of one length that are not in units go into one."""
    whole = _whole(found, long)
    own: list[Own] = []
    for (size, leaf, alone), same in groupby(
        range(len(found)), lambda i: (found[i].size, not found[i].below, whole[i])
    ):
        run = [found[i] for i in same]
        if alone:
            own += (
                [Own(run[0].start, size, len(run))]
                if leaf
                else [Own(span.start, size, 1) for span in run]
            )
    below = tuple(span for span, alone in zip(found, whole, strict=True) if alone and span.below)
    return Calls(tuple(own), below, blocks.stacked(found, whole))


def _whole(found: Sequence[Span], long: int) -> list[bool]:
    """Whether a node, or one below it, is long."""
    whole = [span.size >= long for span in found]
    end = -1  # of the long nodes so far, the first place
    for i in reversed(range(len(found))):
        whole[i] = whole[i] or found[i].stop <= end < found[i].end
        end = found[i].start if whole[i] else end
    return whole


def long_pairs(made: Calls) -> int:
    """Pairs of a query and a key that it sees, of the products of long nodes."""
    own = sum(one.count * one.size * (one.size + 1) // 2 for one in made.own)
    return own + sum(span.size * span.below for span in made.below)
