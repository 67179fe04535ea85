"""Groups short tree nodes into attention units of a few hundred tokens with common ancestors.

A unit is a subtree, minus what is cut off below it, or several such siblings. Its queries meet a
copy of the short nodes above it and the unit itself, under a mask. Joining two units computes pairs
of tokens that do not attend to each other; keeping them apart copies the nodes above them once
more. So units are joined from the leaves up as long as that costs less (ADR 038). Pure numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.learner.packing.node_spans import Span
from services.learner.packing.unroll import Bools, Ints

# Costs in products of a query and a key.
_COPIED_KEY = 20
_UNIT = 500

SCORES = 1 << 17  # scores of one head held at a time, so that they stay in the cache
_LARGEST = 4 * SCORES  # most scores of one head and one unit, which is held as a whole
_PADDING = 1.3  # most that padding may multiply the scores of a stack by


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStack:
    """Units of similar shape, as places in the sequence.

    Axes: `_A` attention units, `_Q` queries (the tokens of a unit), `_K` keys (these, behind the
    short nodes above). Both are padded to the largest unit with a place of the unit itself.

    query_A_Q, kept_A_Q: place of the query; false for padding.
    key_A_K, real_A_K: place of the key; false for padding.
    end_A_K: end of the subtree that attends to the key.
    """

    query_A_Q: Ints
    kept_A_Q: Bools
    key_A_K: Ints
    real_A_K: Bools
    end_A_K: Ints

    @property
    def pairs(self) -> int:
        """Products of a query and a key, including those that the mask hides."""
        return int(self.query_A_Q.size * self.key_A_K.shape[1])

    def visible(self, units: slice) -> Bools:
        """Return [units, queries, keys]: true if the query attends to the key.

        A query attends to a key that is not behind it, if it lies in the key's subtree.
        """
        query = self.query_A_Q[units, :, None]
        key, end = self.key_A_K[units, None], self.end_A_K[units, None]
        visible: Bools = (key <= query) & (query < end) & self.real_A_K[units, None]
        return visible

    @property
    def at_once(self) -> int:
        """Units whose scores are held at a time."""
        return int(max(1, SCORES // (self.query_A_Q.shape[1] * self.key_A_K.shape[1])))

    @property
    def batches(self) -> int:
        """Number of batches of `at_once` units."""
        return -(-len(self.query_A_Q) // self.at_once)


@dataclass(slots=True)
class _Unit:
    """A unit in the making.

    nodes: indices of its nodes.
    size: their tokens.
    above: tokens of the short nodes above it.
    chain: indices of those nodes, from the top.
    """

    nodes: list[int]
    size: int
    above: int
    chain: list[int] = field(default_factory=list)

    def fits(self, other: "_Unit") -> bool:
        """Tell whether both together are small enough to be held."""
        size = self.size + other.size
        return size * (self.above + size) <= _LARGEST

    def join(self, other: "_Unit") -> None:
        """Add the nodes of another unit."""
        self.nodes += other.nodes
        self.size += other.size

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.size, self.above + self.size


def stacked(nodes: Sequence[Span], whole: Sequence[bool]) -> tuple[UnitStack, ...]:
    """Return all short nodes in units, those of similar shape stacked.

    whole: nodes that are not short.
    """
    units = sorted(_units(nodes, whole), key=lambda unit: unit.shape)
    stacks: list[list[_Unit]] = []
    exact = most_keys = 0  # scores without padding, and keys of the widest unit, of the last stack
    for unit in units:
        size, keys = unit.shape
        exact += size * keys
        most_keys = max(most_keys, keys)
        if stacks and (len(stacks[-1]) + 1) * size * most_keys <= _PADDING * exact:
            stacks[-1].append(unit)
        else:
            stacks.append([unit])
            exact, most_keys = size * keys, keys
    return tuple(_stack(nodes, stack) for stack in stacks)


def _units(nodes: Sequence[Span], whole: Sequence[bool]) -> list[_Unit]:
    """Return the units, joined from the leaves up where that costs less."""
    ancestry = _ancestry(nodes, whole)
    below: dict[int, list[_Unit]] = {}  # by node: units that hang from it, in order; -1: roots
    done: list[_Unit] = []
    for i in reversed(range(len(nodes))):
        hanging = _join_siblings(below.pop(i, []))
        if whole[i]:
            done += hanging
            continue
        own = nodes[i].size
        unit = _Unit([i], size=own, above=ancestry.above[i], chain=ancestry.chains[i])
        for other in hanging:
            masked_pairs = other.size * (2 * unit.size - own)
            if unit.fits(other) and masked_pairs < _COPIED_KEY * other.above + _UNIT:
                unit.join(other)
            else:
                done.append(other)
        below.setdefault(ancestry.parents[i], []).append(unit)
    return done + _join_siblings(below.pop(-1, []))


def _join_siblings(units: Sequence[_Unit]) -> list[_Unit]:
    """Join neighbours below one node where that costs less.

    Takes them from the last to the first, and returns them from the first to the last.
    """
    joined: list[_Unit] = []
    for unit in reversed(units):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.fits(unit)
            and 2 * last.size * unit.size < _COPIED_KEY * unit.above + _UNIT
        ):
            last.join(unit)
        else:
            joined.append(unit)
    return joined


@dataclass(frozen=True, slots=True)
class _Ancestry:
    """The ancestors of each node.

    chains: short nodes above it, from the top.
    parents: node right above it; -1 for a root.
    above: tokens of the short nodes above it.
    """

    chains: list[list[int]]
    parents: list[int]
    above: list[int]


def _ancestry(nodes: Sequence[Span], whole: Sequence[bool]) -> _Ancestry:
    ancestry = _Ancestry([], [], [0] * len(nodes))
    path: list[int] = []
    for i, span in enumerate(nodes):
        while path and nodes[path[-1]].end <= span.start:
            path.pop()
        ancestry.parents.append(path[-1] if path else -1)
        ancestry.chains.append([j for j in path if not whole[j]])
        if path and not whole[path[-1]]:
            ancestry.above[i] = ancestry.above[path[-1]] + nodes[path[-1]].size
        path.append(i)
    return ancestry


def _stack(nodes: Sequence[Span], units: Sequence[_Unit]) -> UnitStack:
    own = [_places(nodes, sorted(unit.nodes)) for unit in units]
    above = [_places(nodes, unit.chain) for unit in units]
    queries, before = max(map(len, own)), max(map(len, above))
    query_A_Q = np.zeros((len(units), queries), np.int64)
    key_A_K = np.zeros((len(units), before + queries), np.int64)
    real_A_K = np.zeros(key_A_K.shape, np.bool_)
    for a, (own_places, above_places) in enumerate(zip(own, above, strict=True)):
        own_keys = slice(before, before + len(own_places))
        query_A_Q[a], key_A_K[a] = own_places[-1], own_places[-1]  # padding
        query_A_Q[a, : len(own_places)] = own_places
        key_A_K[a, : len(above_places)] = above_places
        key_A_K[a, own_keys] = own_places
        real_A_K[a, : len(above_places)] = True
        real_A_K[a, own_keys] = True
    end_U = np.zeros(nodes[-1].stop, np.int64)
    for span in nodes:
        end_U[span.start : span.stop] = span.end
    return UnitStack(
        query_A_Q=query_A_Q,
        kept_A_Q=np.arange(queries) < np.array([len(places) for places in own])[:, None],
        key_A_K=key_A_K,
        real_A_K=real_A_K,
        end_A_K=end_U[key_A_K],
    )


def _places(nodes: Sequence[Span], indices: Sequence[int]) -> Ints:
    runs = [np.arange(nodes[i].start, nodes[i].stop) for i in indices]
    return np.concatenate([np.zeros(0, np.int64), *runs])
