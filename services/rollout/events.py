"""The events that a node publishes, as messages with stable ids, split below the broker's limit (PROTOCOL 4)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from banyan import wire
from banyan.digest import blake
from banyan.plugins import LeafMark
from banyan.segment import Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2
from services.chassis import subjects

MOST_BYTES = 512 * 1024
MOST_LEAVES = 64  # a verifier answers for all leaves of a message together
_HEAD_BYTES = 512  # run, node and framing


@dataclass(frozen=True, slots=True)
class Event:
    """A message with its subject and id."""

    subject: str
    message: Message
    msg_id: str
    traceparent: str = ""

    def again(self, attempt: int) -> "Event":
        """The same under another id: the broker drops what it has seen in the last two minutes, stored or not."""
        return Event(self.subject, self.message, f"{self.msg_id}-again{attempt}", self.traceparent)


def segments(run_id: str, node_id: str, made: Iterable[tuple[Segment, int]], traceparent: str = "") -> Iterator[Event]:
    """SegmentsGrown of segments with their claims, as few messages as the limit allows. Parents stay before children."""
    batch: list[events_pb2.GrownSegment] = []
    size = _HEAD_BYTES
    for segment, epoch in made:
        grown = events_pb2.GrownSegment(segment=wire.segment_to_wire(segment), claim_epoch=epoch)
        if batch and size + grown.ByteSize() > MOST_BYTES:
            yield _grown_segments(run_id, node_id, batch, traceparent)
            batch, size = [], _HEAD_BYTES
        batch.append(grown)
        size += grown.ByteSize() + 8
    if batch:
        yield _grown_segments(run_id, node_id, batch, traceparent)


def _grown_segments(run_id: str, node_id: str, batch: Sequence[events_pb2.GrownSegment], traceparent: str) -> Event:
    message = events_pb2.SegmentsGrown(run_id=run_id, node_id=node_id, segments=batch)
    # Claims are in the id: the same segment sampled again under a new claim is another event.
    keys = sorted(g.segment.id + g.claim_epoch.to_bytes(4, "little") for g in batch)
    return Event(subjects.lineage(run_id, "segment"), message, f"segments-{blake(*keys).hex()}", traceparent)


def leaf(run_id: str, tree_id: bytes, epoch: int, mark: LeafMark, completion: str, traceparent: str = "") -> Event:
    """LeavesFinished of one leaf."""
    message = events_pb2.LeafFinished(
        run_id=run_id,
        tree_id=tree_id,
        claim_epoch=epoch,
        leaf=wire.leaf_to_wire(mark.leaf),
        reason=mark.reason,
        completion=completion,
    )
    name = f"leaf-{tree_id.hex()}-{epoch}-{mark.leaf.segment.hex()}-{mark.leaf.end}"
    return Event(subjects.lineage(run_id, "leaf"), events_pb2.LeavesFinished(leaves=[message]), name, traceparent)


def merged(batch: Sequence[Event]) -> list[tuple[Event, list[Event]]]:
    """A run's events that wait together, in as few messages as the limit allows: segments, then leaves, then the rest.

    Each message comes with the events that it holds.
    """
    leaves = [e for e in batch if isinstance(e.message, events_pb2.LeavesFinished)]
    first = [e for e in batch if isinstance(e.message, events_pb2.SegmentsGrown)]
    rest = [e for e in batch if not isinstance(e.message, events_pb2.LeavesFinished | events_pb2.SegmentsGrown)]
    joined = [(_joined(part), part) for part in _parts(leaves)]
    return [*((e, [e]) for e in first), *joined, *((e, [e]) for e in rest)]


def _parts(leaves: Sequence[Event]) -> Iterator[list[Event]]:
    part: list[Event] = []
    size = _HEAD_BYTES
    for event in leaves:
        more = event.message.ByteSize()
        if part and (size + more > MOST_BYTES or len(part) >= MOST_LEAVES):
            yield part
            part, size = [], _HEAD_BYTES
        part.append(event)
        size += more
    if part:
        yield part


def _joined(part: Sequence[Event]) -> Event:
    if len(part) == 1:
        return part[0]
    message = events_pb2.LeavesFinished()
    for event in part:
        message.leaves.extend(getattr(event.message, "leaves"))  # noqa: B009
    traces = {event.traceparent for event in part}
    name = f"leaves-{blake(*sorted(e.msg_id.encode() for e in part)).hex()}"
    return Event(part[0].subject, message, name, traces.pop() if len(traces) == 1 else "")


def grown(run_id: str, node_id: str, tree_id: bytes, epoch: int, leaves: Iterable[Leaf], traceparent: str = "") -> Event:
    """TreeGrown."""
    message = events_pb2.TreeGrown(
        run_id=run_id,
        tree_id=tree_id,
        claim_epoch=epoch,
        leaves=[wire.leaf_to_wire(one) for one in leaves],
        node_id=node_id,
    )
    return Event(subjects.lineage(run_id, "grown"), message, f"grown-{tree_id.hex()}-{epoch}", traceparent)
