"""The rules that a path ends without an answer only by a verifier's word, or the store's own, and
that no growth ends before its actions have (docs/protocol.md, Environments). Pure.
"""

from collections.abc import Iterable, Mapping

from banyan.segment import Finish
from banyan.tree import Leaf
from banyan.wire.endings import from_wire
from services.treestore.events.events import LeafFinished, TreeGrown
from services.treestore.unit_of_work.rows import SegmentHeader


def is_false(
    key: bytes,
    event: LeafFinished,
    headers: Mapping[bytes, SegmentHeader],
    places: Mapping[tuple[bytes, bytes, int, int], bytes],
) -> bool:
    """Return whether a leaf claims falsely that its last action gets no answer.

    key: key of receipts of this system
    headers: segments by id, with all of the leaf's path
    places: ids of segments by tree, parent, fork and ordinal
    """
    if not event.message.HasField("ending"):
        return False
    ending, leaf = from_wire(event.message.ending), event.leaf
    last = headers[leaf.segment]
    is_action = last.finish == Finish.TOOL_CALL and leaf.end == last.length
    has_answer = (event.tree_id, leaf.segment, leaf.end, 0) in places
    if not is_action or has_answer or not ending.proves(key, event.run_id, event.tree_id):
        return True
    return not _is_below(leaf, ending.place, headers)


def open_actions(
    event: TreeGrown,
    headers: Iterable[SegmentHeader],
    places: Mapping[tuple[bytes, bytes, int, int], bytes],
) -> list[bytes]:
    """Return the actions that an end of growth leaves open: without an answer, and no leaf's end.

    headers: segments of the tree, with all of its actions
    places: ids of segments by tree, parent, fork and ordinal
    """
    return [
        header.id
        for header in headers
        if header.finish == Finish.TOOL_CALL
        and (event.tree_id, header.id, header.length, 0) not in places
        and Leaf(header.id, header.length) not in event.leaves
    ]


def _is_below(leaf: Leaf, place: bytes, headers: Mapping[bytes, SegmentHeader]) -> bool:
    """Return whether a leaf's path goes past the end of a segment, or ends there."""
    segment, end = leaf.segment, leaf.end
    while segment:
        header = headers[segment]
        if segment == place:
            return end == header.length
        segment, end = header.parent, header.fork
    return False
