"""The reward rule: the reward of a place from its scores, and the scores that are still missing.

No other module adds scores up. A place is a leaf, or any other scored place; keys are whatever the
caller names places by. The sum of the values is exact and rounded once (Shewchuk 1997), so it does
not depend on the order in which scores came.
"""

import math
import sys
from collections.abc import Collection, Container, Iterable, Mapping
from typing import TypeVar

from banyan.tree import Leaf

Place = TypeVar("Place")
Above = Mapping[bytes, tuple[bytes, int]]
"""Segment → its parent and the fork; the root's parent is empty."""


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


def rewards(
    scores: Iterable[tuple[Place, str, float | None]], scorers: int
) -> dict[Place, float | None]:
    """Return the reward of each place that has scores of at least `scorers` scorers.

    It is the mean of their values, None if any of them found the place unscorable.

    scores: (place, scorer, value), with value None for unscorable
    scorers: number of scorers that each place needs
    """
    values: dict[Place, dict[str, float | None]] = {}
    for place, scorer, value in scores:
        values.setdefault(place, {})[scorer] = value
    return {
        place: _of(list(by_scorer.values()))
        for place, by_scorer in values.items()
        if len(by_scorer) >= max(1, scorers)
    }


def _of(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


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
