"""Order of segments and places in a tree: that of a depth-first walk from the root.

Segments that follow one parent come by fork, then by ordinal; places in one segment come by their
end, before all that follows it. So every holder of a tree (rows, messages, segments) lists it in
the same order, however it arrived.

Nodes (banyan/view.py) have another order: a pre-order of the parts that segments are cut into. Here
the end of a segment comes before a fork in its middle, and a fork in the middle before one at the
end. In a pre-order of nodes a fork at the end is below the end and comes with it, before a fork in
the middle; of the forks of one segment the later ones come first. In all else the two agree.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

Path = tuple[tuple[int, int], ...]


class Placed(Protocol):
    """Segment, SQL row of one, or message of one."""

    @property
    def id(self) -> bytes: ...
    @property
    def parent(self) -> bytes: ...
    @property
    def fork(self) -> int: ...
    @property
    def ordinal(self) -> int: ...


def paths(segments: Iterable[Placed]) -> dict[bytes, Path]:
    """Return each segment's forks and ordinals from the root down; they sort as the walk.

    Segments come in any order; one whose parent is missing counts as a root.
    """
    by_id = {segment.id: segment for segment in segments}
    known: dict[bytes, Path] = {}
    for segment_id in by_id:
        path(segment_id, by_id, known)
    return known


def path(segment_id: bytes, by_id: Mapping[bytes, Placed], known: dict[bytes, Path]) -> Path:
    """Return the path of one segment.

    known: paths found before; receives all above the segment, so that a growing tree climbs only
        over new segments
    """
    climbed: list[Placed] = []
    ancestor = segment_id
    while ancestor in by_id and ancestor not in known:
        climbed.append(by_id[ancestor])
        ancestor = by_id[ancestor].parent
    for segment in reversed(climbed):
        above = known.get(segment.parent)
        known[segment.id] = () if above is None else (*above, (segment.fork, segment.ordinal))
    return known[segment_id]


def at(paths: Mapping[bytes, Path], segment: bytes, end: int) -> tuple[Path, int]:
    """Return the sort key of a place; a place in an unknown segment sorts with the root's."""
    return paths.get(segment, ()), end
