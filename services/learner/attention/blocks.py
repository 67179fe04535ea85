"""Units of short nodes: what is one block of attention, a few hundred tokens that share all that is above them. Pure numpy.

A unit is a subtree, less what is cut off below it, or several such siblings. Its queries meet a copy of the short nodes
above it and the unit itself, under a mask. To join two units computes pairs of tokens that do not see each other; to keep
them apart copies what is above them once more. So units are joined from below as long as that costs less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.learner.packing.node_spans import Span
from services.learner.packing.unroll import Bools, Ints

# In products of a query and a key: what a copied key costs, and a unit by itself.
_COPY, _UNIT = 20, 500
SCORES = 1 << 17  # of a head, held at a time: they stay in the cache
_MOST = 4 * SCORES  # of a head and one unit: it is held as a whole
_FILL = 1.3  # most that padding may add to a stack


@dataclass(frozen=True, slots=True)
class Units:
    """Units of about one shape, as places in the row: `_U` units, `_Q` their tokens, `_K` these behind all above them.

    Both are filled up to the largest unit with places of it; kept_U_Q and real_U_K say which are not filling. end_U_K is
    where the subtree ends that sees the key.
    """

    query_U_Q: Ints
    kept_U_Q: Bools
    key_U_K: Ints
    real_U_K: Bools
    end_U_K: Ints

    @property
    def pairs(self) -> int:
        """Products of a query and a key, with those that the mask hides."""
        return int(self.query_U_Q.size * self.key_U_K.shape[1])

    def sees(self, units: slice) -> Bools:
        """[units, queries, keys]: a query sees what is not behind it and in whose subtree it is."""
        query_U_Q, key_U_K, end_U_K = (
            self.query_U_Q[units, :, None],
            self.key_U_K[units, None],
            self.end_U_K[units, None],
        )
        seen: Bools = (key_U_K <= query_U_Q) & (query_U_Q < end_U_K) & self.real_U_K[units, None]
        return seen

    @property
    def at_once(self) -> int:
        """Units whose scores are held at a time."""
        return int(max(1, SCORES // (self.query_U_Q.shape[1] * self.key_U_K.shape[1])))

    @property
    def parts(self) -> int:
        """How many times that is."""
        return -(-len(self.query_U_Q) // self.at_once)


@dataclass(slots=True)
class _Unit:
    nodes: list[int]
    size: int
    above: int  # tokens of short nodes above it
    chain: list[int] = field(default_factory=list)

    def takes(self, other: "_Unit") -> bool:
        """Whether the two are not too much to hold."""
        size = self.size + other.size
        return size * (self.above + size) <= _MOST

    def join(self, other: "_Unit") -> None:
        self.nodes += other.nodes
        self.size += other.size

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.above + self.size


def stacked(found: Sequence[Span], whole: Sequence[bool]) -> tuple[Units, ...]:
    """All short nodes, in units of which those of about one shape are stacked. whole: nodes that are not short."""
    units = sorted(_units(found, whole), key=lambda unit: unit.shape)
    stacks: list[list[_Unit]] = []
    exact = most = 0
    for unit in units:
        size, keys = unit.shape
        exact, most = exact + size * keys, max(most, keys)
        if stacks and (len(stacks[-1]) + 1) * size * most <= _FILL * exact:
            stacks[-1].append(unit)
        else:
            stacks.append([unit])
            exact, most = size * keys, keys
    return tuple(_stack(found, stack) for stack in stacks)


def _units(found: Sequence[Span], whole: Sequence[bool]) -> list[_Unit]:
    chains, parents, above = _chains(found, whole)
    below: dict[
        int, list[_Unit]
    ] = {}  # by node, the units that hang from it, in order; from -1 those of the roots
    done: list[_Unit] = []
    for i in reversed(range(len(found))):
        hanging = _siblings(below.pop(i, []))
        if whole[i]:
            done += hanging
            continue
        unit, own = _Unit([i], found[i].size, above[i], chains[i]), found[i].size
        for other in hanging:
            if (
                unit.takes(other)
                and other.size * (2 * unit.size - own) < _COPY * other.above + _UNIT
            ):
                unit.join(other)
            else:
                done.append(other)
        below.setdefault(parents[i], []).append(unit)
    return done + _siblings(below.pop(-1, []))


def _siblings(units: Sequence[_Unit]) -> list[_Unit]:
    """Neighbours below one node, from the last to the first, joined where it pays; from the first to the last."""
    joined: list[_Unit] = []
    for unit in reversed(units):
        last = joined[-1] if joined else unit
        if joined and last.takes(unit) and 2 * last.size * unit.size < _COPY * unit.above + _UNIT:
            joined[-1].join(unit)
        else:
            joined.append(unit)
    return joined


def _chains(
    found: Sequence[Span], whole: Sequence[bool]
) -> tuple[list[list[int]], list[int], list[int]]:
    """Of each node: the short nodes above it, from the top; the node right above it, −1 for none; and the tokens of the
    former."""
    chains: list[list[int]] = []
    parents, above = [], [0] * len(found)
    path: list[int] = []
    for i, span in enumerate(found):
        while path and found[path[-1]].end <= span.start:
            path.pop()
        parents.append(path[-1] if path else -1)
        chains.append([j for j in path if not whole[j]])
        if path and not whole[path[-1]]:
            above[i] = above[path[-1]] + found[path[-1]].size
        path.append(i)
    return chains, parents, above


def _stack(found: Sequence[Span], units: Sequence[_Unit]) -> Units:
    own = [_places(found, sorted(unit.nodes)) for unit in units]
    above = [_places(found, unit.chain) for unit in units]
    size, before = max(map(len, own)), max(map(len, above))
    query_U_Q, key_U_K = (
        np.zeros((len(units), size), np.int64),
        np.zeros((len(units), before + size), np.int64),
    )
    real_U_K = np.zeros(key_U_K.shape, np.bool_)
    for u, (mine, theirs) in enumerate(zip(own, above, strict=True)):
        query_U_Q[u], key_U_K[u] = mine[-1], mine[-1]
        query_U_Q[u, : len(mine)] = mine
        key_U_K[u, : len(theirs)], key_U_K[u, before : before + len(mine)] = theirs, mine
        real_U_K[u, : len(theirs)] = real_U_K[u, before : before + len(mine)] = True
    kept_U_Q = np.arange(size) < np.array([len(mine) for mine in own])[:, None]
    end_N = np.zeros(found[-1].stop, np.int64)  # of each place, where its node's subtree ends
    for span in found:
        end_N[span.start : span.stop] = span.end
    return Units(query_U_Q, kept_U_Q, key_U_K, real_U_K, end_N[key_U_K])


def _places(found: Sequence[Span], nodes: Sequence[int]) -> Ints:
    return np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(found[i].start, found[i].stop) for i in nodes)]
    )
