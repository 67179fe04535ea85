"""Units of short nodes: what is one block of attention, a few hundred tokens that share all that is above them. Pure numpy.

A unit is a subtree, less what is cut off below it, or several such siblings. Its queries meet a copy of the short nodes
above it and the unit itself, under a mask. To join two units computes pairs of tokens that do not see each other; to keep
them apart copies what is above them once more. So units are joined from below as long as that costs less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.learner.paths import Bools, Ints
from services.learner.spans import Span

# In products of a query and a key: what a copied key costs, and a unit by itself.
_COPY, _UNIT = 20, 500
SCORES = 1 << 17  # of a head, held at a time: they stay in the cache
_FILL = 1.3  # most that padding may add to a stack


@dataclass(frozen=True, slots=True)
class Units:
    """Units of about one shape, as places in the row: `_U` units, `_Q` their tokens, `_K` these behind all above them.

    Both are filled up to the largest unit with places of it; kept_U_Q says which queries are not filling.
    """

    query_U_Q: Ints
    kept_U_Q: Bools
    key_U_K: Ints
    sees_U_Q_K: Bools

    @property
    def pairs(self) -> int:
        """Products of a query and a key, with those that the mask hides."""
        return int(self.sees_U_Q_K.size)

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
    exact = 0
    for unit in units:
        size, keys = unit.shape
        most = max(keys, *(u.above + u.size for u in stacks[-1])) if stacks else keys
        exact += size * keys
        if stacks and (len(stacks[-1]) + 1) * size * most <= _FILL * exact:
            stacks[-1].append(unit)
        else:
            stacks.append([unit])
            exact = size * keys
    return tuple(_stack(found, stack) for stack in stacks)


def _units(found: Sequence[Span], whole: Sequence[bool]) -> list[_Unit]:
    chains = _chains(found, whole)
    below: dict[int, list[_Unit]] = {}  # by node, the units that hang from it, in order; from -1 those of the roots
    done: list[_Unit] = []
    for i in reversed(range(len(found))):
        hanging = _siblings(below.pop(i, []))
        if whole[i]:
            done += hanging
            continue
        above = sum(found[j].size for j in chains[i])
        unit, own = _Unit([i], found[i].size, above, chains[i]), found[i].size
        for other in hanging:
            if other.size * (2 * unit.size - own) < _COPY * other.above + _UNIT:
                unit.join(other)
            else:
                done.append(other)
        below.setdefault(chains[i][-1] if chains[i] else _parent(found, i), []).insert(0, unit)
    return done + _siblings(below.pop(-1, []))


def _siblings(units: Sequence[_Unit]) -> list[_Unit]:
    """Neighbours below one node, joined where it pays."""
    joined: list[_Unit] = []
    for unit in units:
        if joined and 2 * joined[-1].size * unit.size < _COPY * unit.above + _UNIT:
            joined[-1].join(unit)
        else:
            joined.append(unit)
    return joined


def _chains(found: Sequence[Span], whole: Sequence[bool]) -> list[list[int]]:
    """Of each node, the short nodes above it, from the top."""
    chains: list[list[int]] = []
    path: list[int] = []
    for i, span in enumerate(found):
        while path and found[path[-1]].end <= span.start:
            path.pop()
        chains.append(list(path))
        if not whole[i]:
            path.append(i)
    return chains


def _parent(found: Sequence[Span], i: int) -> int:
    """The node right above one that has no short ones above it; -1 for none."""
    return next((j for j in reversed(range(i)) if found[j].end > found[i].start), -1)


def _stack(found: Sequence[Span], units: Sequence[_Unit]) -> Units:
    own = [_places(found, sorted(unit.nodes)) for unit in units]
    above = [_places(found, unit.chain) for unit in units]
    size, before = max(map(len, own)), max(map(len, above))
    query_U_Q, key_U_K = np.zeros((len(units), size), np.int64), np.zeros((len(units), before + size), np.int64)
    valid_U_K = np.zeros(key_U_K.shape, np.bool_)
    for u, (mine, theirs) in enumerate(zip(own, above, strict=True)):
        query_U_Q[u], key_U_K[u] = mine[-1], mine[-1]
        query_U_Q[u, : len(mine)] = mine
        key_U_K[u, : len(theirs)], key_U_K[u, before : before + len(mine)] = theirs, mine
        valid_U_K[u, : len(theirs)] = valid_U_K[u, before : before + len(mine)] = True
    kept_U_Q = np.arange(size) < np.array([len(mine) for mine in own])[:, None]
    end_N = np.zeros(found[-1].stop, np.int64)  # of each place, where its node's subtree ends
    for span in found:
        end_N[span.start : span.stop] = span.end
    before_U_Q_K = key_U_K[:, None] <= query_U_Q[:, :, None]
    sees_U_Q_K = before_U_Q_K & (query_U_Q[:, :, None] < end_N[key_U_K][:, None]) & valid_U_K[:, None]
    return Units(query_U_Q, kept_U_Q, key_U_K, sees_U_Q_K)


def _places(found: Sequence[Span], nodes: Sequence[int]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(found[i].start, found[i].stop) for i in nodes)])
