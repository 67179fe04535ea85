"""The order of segments and places in a tree: as a depth-first walk from the root meets their segments. Pure.

Segments that follow one parent come by fork, then by ordinal; places in one segment by their end, before all that follows
it. So whatever holds a tree (rows, messages, segments) says it in the same order, however it arrived.
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
        climbed: list[Placed] = []
        while segment_id in held and segment_id not in found:
            climbed.append(held[segment_id])
            segment_id = held[segment_id].parent
        for segment in reversed(climbed):
            above = found.get(segment.parent)
            found[segment.id] = () if above is None else (*above, (segment.fork, segment.ordinal))
    return found


def at(paths: Mapping[bytes, Path], segment: bytes, end: int) -> tuple[Path, int]:
    """Return what places sort by; one in a segment that is not there comes with the root's."""
    return paths.get(segment, ()), end
