"""Tokens that the paths of a tree share. Pure."""

from collections.abc import Collection, Mapping

from banyan.tree import Leaf
from services.treestore.unit_of_work.rows import SegmentHeader


def reached(headers: Mapping[bytes, SegmentHeader], leaves: Collection[Leaf]) -> dict[bytes, int]:
    """Return the segments on the paths of leaves, each with the farthest token that a path takes.

    headers: segments by id, with all of the paths
    """
    farthest: dict[bytes, int] = {}
    for leaf in leaves:
        segment, end = leaf.segment, leaf.end
        while segment:
            known = segment in farthest
            farthest[segment] = max(end, farthest.get(segment, 0))
            if known:
                break  # another path has been here, and all before it
            segment, end = headers[segment].parent, headers[segment].fork
    return farthest


def tokens(
    headers: Mapping[bytes, SegmentHeader], farthest: Mapping[bytes, int], kinds: Collection[int]
) -> int:
    """Return the number of tokens of some kinds of segments on paths, each counted once."""
    return sum(end for segment, end in farthest.items() if headers[segment].kind in kinds)
