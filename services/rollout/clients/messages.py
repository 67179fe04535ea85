"""Events of a node as messages with stable ids, split below the broker's limit.

See docs/protocol.md, Message ids, and Grouping and size.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from banyan.digest import blake
from banyan.environments.endings import Ending
from banyan.plugins import LeafMark
from banyan.segment import Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2
from banyan.wire import endings
from banyan.wire import segments as wire
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import MAX_MESSAGE_BYTES
from services.chassis.messaging.chunks import FRAMING_BYTES, chunked

# Messages that are joined, in the order in which they go out, and how many of each at most.
_JOINED: dict[type[Message], int] = {
    events_pb2.SegmentsGrown: 1 << 30,
    events_pb2.LeavesFinished: subjects.MOST_LEAVES,
    events_pb2.TreesGrown: subjects.MOST_TREES,
}


@dataclass(frozen=True, slots=True)
class Event:
    """A message to publish.

    subject: subject of the log.
    message: the message.
    msg_id: id by which the broker drops repetitions.
    traceparent: trace context; empty for none.
    """

    subject: str
    message: Message
    msg_id: str
    traceparent: str = ""

    def again(self, attempt: int) -> "Event":
        """Return the event under another id.

        The broker drops any id that came in the last two minutes, whether the store has it or not.
        """
        msg_id = f"{self.msg_id}-again{attempt}"
        return Event(self.subject, self.message, msg_id, self.traceparent)


def segments(
    run_id: str,
    node_id: str,
    claimed: Iterable[tuple[Segment, int]],
    traceparent: str = "",
    plans: Iterable[events_pb2.GrownPlan] = (),
) -> Iterator[Event]:
    """Yield SegmentsGrown events, as few as the limit of a message allows.

    Parents stay before children, and plans after the segments that caused them. A segment that is
    too large for any message has one of its own.

    claimed: segments with the epochs of their claims.
    """
    message = events_pb2.SegmentsGrown(run_id=run_id, node_id=node_id)
    size = FRAMING_BYTES
    parts: list[events_pb2.GrownSegment | events_pb2.GrownPlan] = [
        events_pb2.GrownSegment(segment=wire.segment_to_wire(segment), claim_epoch=epoch)
        for segment, epoch in claimed
    ]
    parts += plans
    for part in parts:
        if size > FRAMING_BYTES and size + part.ByteSize() > MAX_MESSAGE_BYTES:
            yield _segments_grown(message, traceparent)
            message = events_pb2.SegmentsGrown(run_id=run_id, node_id=node_id)
            size = FRAMING_BYTES
        if isinstance(part, events_pb2.GrownPlan):
            message.plans.append(part)
        else:
            message.segments.append(part)
        size += part.ByteSize() + 8
    if size > FRAMING_BYTES:
        yield _segments_grown(message, traceparent)


def leaf(
    run_id: str,
    tree_id: bytes,
    epoch: int,
    mark: LeafMark,
    completion: str,
    traceparent: str = "",
    ending: Ending | None = None,
) -> Event:
    """Return the LeavesFinished event of one leaf.

    ending: proof that its last action gets no answer.
    """
    message = events_pb2.LeafFinished(
        run_id=run_id,
        tree_id=tree_id,
        claim_epoch=epoch,
        leaf=wire.leaf_to_wire(mark.leaf),
        reason=mark.reason,
        completion=completion,
        ending=endings.to_wire(ending) if ending is not None else None,
    )
    msg_id = f"leaf-{tree_id.hex()}-{epoch}-{mark.leaf.segment.hex()}-{mark.leaf.end}"
    leaves = events_pb2.LeavesFinished(leaves=[message])
    return Event(subjects.lineage(run_id, "leaf"), leaves, msg_id, traceparent)


def grown(
    run_id: str,
    node_id: str,
    tree_id: bytes,
    epoch: int,
    leaves: Iterable[Leaf],
    traceparent: str = "",
    inside: Iterable[Leaf] = (),
) -> Event:
    """Return the TreesGrown event of one tree.

    inside: places on its paths that need scores of their own.
    """
    message = events_pb2.TreeGrown(
        run_id=run_id,
        tree_id=tree_id,
        claim_epoch=epoch,
        leaves=[wire.leaf_to_wire(leaf) for leaf in leaves],
        node_id=node_id,
        inside=[wire.leaf_to_wire(place) for place in inside],
    )
    trees = events_pb2.TreesGrown(trees=[message])
    msg_id = f"grown-{tree_id.hex()}-{epoch}"
    return Event(subjects.lineage(run_id, "grown"), trees, msg_id, traceparent)


def merged(batch: Sequence[Event]) -> list[tuple[Event, list[Event]]]:
    """Merge events of one run into as few messages as the limits allow.

    Segments come first, then leaves, then ends of growth. Each message comes with the events that
    it holds.
    """
    kinds: dict[type[Message], list[Event]] = {kind: [] for kind in _JOINED}
    for event in batch:
        kinds[type(event.message)].append(event)
    return [
        (_joined(part), part)
        for kind, most in _JOINED.items()
        for part in chunked(kinds[kind], _size, most)
    ]


def _segments_grown(message: events_pb2.SegmentsGrown, traceparent: str) -> Event:
    # Claims are in the id: the same segment sampled again under a new claim is another event.
    keys = [grown.segment.id + _u32(grown.claim_epoch) for grown in message.segments]
    keys += [
        grown.tree_id + _u32(grown.plan.claim_epoch) + _u32(grown.plan.number)
        for grown in message.plans
    ]
    msg_id = f"segments-{blake(*sorted(keys)).hex()}"
    return Event(subjects.lineage(message.run_id, "segment"), message, msg_id, traceparent)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _size(event: Event) -> int:
    return event.message.ByteSize()


def _joined(events: Sequence[Event]) -> Event:
    """Return one event whose list fields hold those of all, one after the other."""
    first = events[0]
    if len(events) == 1:
        return first
    joined = type(first.message)()
    joined.CopyFrom(first.message)
    for event in events[1:]:
        for field, value in event.message.ListFields():
            if field.is_repeated:
                getattr(joined, field.name).extend(value)
    traces = {event.traceparent for event in events}
    msg_id = f"joined-{blake(*sorted(event.msg_id.encode() for event in events)).hex()}"
    return Event(first.subject, joined, msg_id, traces.pop() if len(traces) == 1 else "")
