"""The events that a node publishes, as messages with stable ids, split below the broker's limit (PROTOCOL 4)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from banyan.digest import blake
from banyan.plugins import LeafMark
from banyan.segment import Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2
from banyan.wire import segments as wire
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import MAX_MESSAGE_BYTES
from services.chassis.messaging.chunks import FRAMING_BYTES, chunked

# Messages that are joined, in the order in which they go out, and how many of each.
_ORDER: dict[type[Message], int] = {
    events_pb2.SegmentsGrown: 1 << 30,
    events_pb2.LeavesFinished: subjects.MOST_LEAVES,
    events_pb2.TreesGrown: subjects.MOST_TREES,
}


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


def segments(
    run_id: str,
    node_id: str,
    made: Iterable[tuple[Segment, int]],
    traceparent: str = "",
    plans: Iterable[events_pb2.GrownPlan] = (),
) -> Iterator[Event]:
    """SegmentsGrown of segments with their claims, as few messages as the limit allows. Parents stay before children, and
    plans behind the segments that caused them. A segment that is too large for any message has one of its own."""
    message, size = events_pb2.SegmentsGrown(run_id=run_id, node_id=node_id), FRAMING_BYTES
    grown = (
        events_pb2.GrownSegment(segment=wire.segment_to_wire(s), claim_epoch=epoch)
        for s, epoch in made
    )
    said: list[events_pb2.GrownSegment | events_pb2.GrownPlan] = [*grown, *plans]
    for part in said:
        if size > FRAMING_BYTES and size + part.ByteSize() > MAX_MESSAGE_BYTES:
            yield _grown_segments(message, traceparent)
            message, size = events_pb2.SegmentsGrown(run_id=run_id, node_id=node_id), FRAMING_BYTES
        if isinstance(part, events_pb2.GrownPlan):
            message.plans.append(part)
        else:
            message.segments.append(part)
        size += part.ByteSize() + 8
    if size > FRAMING_BYTES:
        yield _grown_segments(message, traceparent)


def _grown_segments(message: events_pb2.SegmentsGrown, traceparent: str) -> Event:
    # Claims are in the id: the same segment sampled again under a new claim is another event.
    keys = [g.segment.id + _u32(g.claim_epoch) for g in message.segments]
    keys += [p.tree_id + _u32(p.plan.claim_epoch) + _u32(p.plan.number) for p in message.plans]
    return Event(
        subjects.lineage(message.run_id, "segment"),
        message,
        f"segments-{blake(*sorted(keys)).hex()}",
        traceparent,
    )


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def leaf(
    run_id: str, tree_id: bytes, epoch: int, mark: LeafMark, completion: str, traceparent: str = ""
) -> Event:
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
    return Event(
        subjects.lineage(run_id, "leaf"),
        events_pb2.LeavesFinished(leaves=[message]),
        name,
        traceparent,
    )


def merged(batch: Sequence[Event]) -> list[tuple[Event, list[Event]]]:
    """A run's events that wait together, in as few messages as the limit allows: segments, then leaves, then ends of growth.

    Each message comes with the events that it holds.
    """
    kinds: dict[type[Message], list[Event]] = {kind: [] for kind in _ORDER}
    for event in batch:
        kinds[type(event.message)].append(event)
    return [
        (_joined(part), part)
        for kind, most in _ORDER.items()
        for part in chunked(kinds[kind], _size, most)
    ]


def _size(event: Event) -> int:
    return event.message.ByteSize()


def _joined(part: Sequence[Event]) -> Event:
    """One event of all: its list fields are theirs, one after the other."""
    if len(part) == 1:
        return part[0]
    joined = type(part[0].message)()
    joined.CopyFrom(part[0].message)
    for event in part[1:]:
        for field, value in event.message.ListFields():
            if field.is_repeated:
                getattr(joined, field.name).extend(value)
    traces = {event.traceparent for event in part}
    subject, name = (
        part[0].subject,
        f"joined-{blake(*sorted(e.msg_id.encode() for e in part)).hex()}",
    )
    return Event(subject, joined, name, traces.pop() if len(traces) == 1 else "")


def grown(
    run_id: str,
    node_id: str,
    tree_id: bytes,
    epoch: int,
    leaves: Iterable[Leaf],
    traceparent: str = "",
    inside: Iterable[Leaf] = (),
) -> Event:
    """TreesGrown of one tree. inside: places on its paths that owe scores of their own."""
    message = events_pb2.TreeGrown(
        run_id=run_id,
        tree_id=tree_id,
        claim_epoch=epoch,
        leaves=[wire.leaf_to_wire(one) for one in leaves],
        node_id=node_id,
        inside=[wire.leaf_to_wire(one) for one in inside],
    )
    trees = events_pb2.TreesGrown(trees=[message])
    return Event(
        subjects.lineage(run_id, "grown"), trees, f"grown-{tree_id.hex()}-{epoch}", traceparent
    )
