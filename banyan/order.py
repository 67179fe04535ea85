"""The order of segments and places in a tree: as a depth-first walk from the root meets their segments. Pure.

Segments that follow one parent come by fork, then by ordinal; places in one segment by their end, before all that follows
it. So whatever holds a tree (rows, messages, segments) says it in the same order, however it arrived.

Nodes (banyan/view.py) have another: theirs is a pre-order of what segments are cut into, and no such order is this one. Here
the end of a segment comes before what forks from its middle, and a fork in the middle before one at the end; but in a
pre-order of nodes what forks at the end is below the end, so it comes with it, before what forks from the middle. Of the
forks of one segment those further on come first there; all else is as here.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

Path = tuple[tuple[int, int], ...]


class Placed(Protocol):
    """A segment, a row or a message of one."""

    @property
    def id(self) -> bytes: ...
    @property
    def parent(self) -> bytes: ...
    @property
    def fork(self) -> int: ...
    @property
    def ordinal(self) -> int: ...


def paths(segments: Iterable[Placed]) -> dict[bytes, Path]:
    """Return each segment's forks and ordinals from the root down: they sort as the walk. Segments come in any order; one
    whose parent is not among them counts as a root."""
    held = {segment.id: segment for segment in segments}
    found: dict[bytes, Path] = {}
    for segment_id in held:
        path(segment_id, held, found)
    return found


def path(segment_id: bytes, held: Mapping[bytes, Placed], found: dict[bytes, Path]) -> Path:
    """Return one segment's. found: those that are known, which gets all above it, so that a tree that grows climbs only what
    is new."""
    climbed: list[Placed] = []
    above_it = segment_id
    while above_it in held and above_it not in found:
        climbed.append(held[above_it])
        above_it = held[above_it].parent
    for segment in reversed(climbed):
        above = found.get(segment.parent)
        found[segment.id] = () if above is None else (*above, (segment.fork, segment.ordinal))
    return found[segment_id]


def at(paths: Mapping[bytes, Path], segment: bytes, end: int) -> tuple[Path, int]:
    """Return what places sort by; one in a segment that is not there comes with the root's."""
    return paths.get(segment, ()), end
