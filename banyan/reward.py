"""The reward rule: what the scores of a place come to, and which scores are still owed. Pure; nobody else adds scores up.

A place is a leaf, or any other place that was scored; keys are whatever the caller names places by. The sum of the values
is exact and rounded once (Shewchuk 1997), so it is the same whoever adds and in whatever order scores came.
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
    """Return the mean of finite values, exact but for one rounding of the sum. Raises ZeroDivisionError for none."""
    many = len(values)
    if many and max(map(abs, values)) > sys.float_info.max / (
        2 * many
    ):  # their sum may be beyond floats, in some order
        bits = many.bit_length()
        small = [math.ldexp(value, -bits) for value in values]
        return math.ldexp(min(max(math.fsum(small) / many, min(small)), max(small)), bits)
    return math.fsum(values) / many


def rewards(
    scores: Iterable[tuple[Place, str, float | None]], scorers: int = 1
) -> dict[Place, float | None]:
    """Return the reward of each place that at least `scorers` have spoken of: the mean of their values, None where one of
    them found it unscorable. scores: (place, scorer, value), the value None where it is unscorable."""
    values: dict[Place, dict[str, float | None]] = {}
    for place, scorer, value in scores:
        values.setdefault(place, {})[scorer] = value
    return {
        place: _of(list(held.values()))
        for place, held in values.items()
        if len(held) >= max(1, scorers)
    }


def _of(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def owed(
    places: Iterable[Place], scorers: Collection[str], given: Container[tuple[Place, str]]
) -> list[tuple[Place, str]]:
    """Return the (place, scorer) pairs without a score: each of the places needs one of each scorer."""
    return [
        (place, scorer) for place in places for scorer in scorers if (place, scorer) not in given
    ]


def settled(place: Leaf, above: Above) -> Leaf:
    """Return the one name of a place: before the first token of a segment is where its parent was forked."""
    while place.end == 0 and place.segment in above and above[place.segment][0]:
        place = Leaf(*above[place.segment])
    return place


def inner(places: Iterable[Leaf], leaves: Collection[Leaf], above: Above) -> dict[Leaf, Leaf]:
    """Return those of the places that a path to one of the leaves goes on from, each with its one name (`settled`).

    A place that is a leaf itself is none of them: its score is the reward of the path that ends there.
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
    """Tell whether the path to a leaf passes one of the places."""
    reach = _reach([settled(leaf, above)], above)
    return any(place.end <= reach.get(place.segment, -1) for place in places)


def _reach(leaves: Iterable[Leaf], above: Above) -> dict[bytes, int]:
    """Return how many tokens of each segment the paths to the leaves hold."""
    reach: dict[bytes, int] = {}
    for leaf in leaves:
        segment, end = leaf.segment, leaf.end
        while segment:
            known = segment in reach
            reach[segment] = max(reach.get(segment, 0), end)
            if known:  # all above it is known too
                break
            segment, end = above.get(segment, (b"", 0))
    return reach
