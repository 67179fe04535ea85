"""The reward rule: the reward of a place from its scores, and the scores that are still missing.

No other module adds scores up. A place is a leaf, or any other scored place; keys are whatever the
caller names places by. The sum of the values is exact and rounded once (Shewchuk 1997), so it does
not depend on the order in which scores came.
"""

import math
import sys
from collections.abc import Collection, Container, Iterable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import TypeVar

from banyan.tree import Leaf

Place = TypeVar("Place")
Above = Mapping[bytes, tuple[bytes, int]]
"""Segment → its parent and the fork; the root's parent is empty."""
Weights = Mapping[str, float]
"""Scorer → its weight; 1 for one that is missing."""
EQUAL: Weights = MappingProxyType({})
_LARGEST = Fraction(sys.float_info.max)


def mean(values: Collection[float]) -> float:
    """Return the mean of finite values, exact but for one rounding of the sum.

    Raises ZeroDivisionError for an empty collection.
    """
    count = len(values)
    # A partial sum of such values may exceed the range of floats, in some order.
    if count and max(map(abs, values)) > sys.float_info.max / (2 * count):
        bits = count.bit_length()
        small = [math.ldexp(value, -bits) for value in values]
        return math.ldexp(min(max(math.fsum(small) / count, min(small)), max(small)), bits)
    return math.fsum(values) / count


def weighted(values: Mapping[str, float], weights: Weights) -> float:
    """Return Σ w·v over the sum of the positive weights, exact and rounded once; the plain mean
    where all weights are equal.

    So penalties, whose weights are negative, are taken off the mean of the others, and 1 of each
    scorer that is none gives 1. Raises ZeroDivisionError if no weight is positive.

    values: by scorer, of scorers with a weight other than 0
    """
    weight = {scorer: weights.get(scorer, 1.0) for scorer in values}
    if len(set(weight.values())) <= 1:
        return mean(values.values())
    total = sum(Fraction(w) for w in weight.values() if w > 0)
    exact = sum(Fraction(weight[scorer]) * Fraction(v) for scorer, v in values.items()) / total
    return float(max(-_LARGEST, min(exact, _LARGEST)))


def rewards(
    scores: Iterable[tuple[Place, str, float | None]], scorers: int, weights: Weights = EQUAL
) -> dict[Place, float | None]:
    """Return the reward of each place that has scores of at least `scorers` scorers.

    It is the weighted mean of their values, None if a scorer with a weight other than 0 found the
    place unscorable.

    scores: (place, scorer, value), with value None for unscorable
    scorers: number of scorers that each place needs, those with the weight 0 included
    """
    values: dict[Place, dict[str, float | None]] = {}
    for place, scorer, value in scores:
        values.setdefault(place, {})[scorer] = value
    return {
        place: _of(by_scorer, weights)
        for place, by_scorer in values.items()
        if len(by_scorer) >= max(1, scorers)
    }


def _of(by_scorer: Mapping[str, float | None], weights: Weights) -> float | None:
    counted = {scorer: v for scorer, v in by_scorer.items() if weights.get(scorer, 1.0) != 0}
    known = {scorer: value for scorer, value in counted.items() if value is not None}
    return weighted(known, weights) if known and len(known) == len(counted) else None


def share(scorer: str, scorers: Collection[str], weights: Weights = EQUAL) -> float:
    """Return the factor of one scorer's value in a place's reward; 0 if it is none of them."""
    counted = {name: float(name == scorer) for name in scorers if weights.get(name, 1.0)}
    return weighted(counted, weights) if scorer in counted else 0.0


def owed(
    places: Iterable[Place], scorers: Collection[str], scored: Container[tuple[Place, str]]
) -> list[tuple[Place, str]]:
    """Return the (place, scorer) pairs without a score; each place needs one of each scorer."""
    return [
        (place, scorer) for place in places for scorer in scorers if (place, scorer) not in scored
    ]


def settled(place: Leaf, above: Above) -> Leaf:
    """Return the one name of a place.

    The place before the first token of a segment is the fork in its parent.
    """
    while place.end == 0 and place.segment in above and above[place.segment][0]:
        place = Leaf(*above[place.segment])
    return place


def inner(places: Iterable[Leaf], leaves: Collection[Leaf], above: Above) -> dict[Leaf, Leaf]:
    """Return the places on a path to one of the leaves, but not at its end, with their one names.

    A place that is a leaf is left out: its score is the reward of the path that ends there.
    """
    ends = {settled(leaf, above) for leaf in leaves}
    reach = _reach(ends, above)
    named = {place: settled(place, above) for place in places}
    return {
        p: at
        for p, at in named.items()
        if at not in ends and 0 < at.end <= reach.get(at.segment, 0)
    }


def passing(places: Iterable[Leaf], leaf: Leaf, above: Above) -> bool:
    """Return whether the path to a leaf passes one of the places."""
    reach = _reach([settled(leaf, above)], above)
    return any(place.end <= reach.get(place.segment, -1) for place in places)


def _reach(leaves: Iterable[Leaf], above: Above) -> dict[bytes, int]:
    """Return the number of tokens of each segment on the paths to the leaves."""
    reach: dict[bytes, int] = {}
    for leaf in leaves:
        segment, end = leaf.segment, leaf.end
        while segment:
            known = segment in reach
            reach[segment] = max(reach.get(segment, 0), end)
            if known:  # so are all segments above it
                break
            segment, end = above.get(segment, (b"", 0))
    return reach
