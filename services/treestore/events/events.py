"""The facts in messages of the log, a class for each kind; facts are judged, parked and refused one
by one.
"""

from dataclasses import dataclass
from typing import ClassVar

from google.protobuf.message import Message

from banyan import digest
from banyan.segment import Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2


@dataclass(frozen=True, slots=True)
class Event:
    """One fact of a message.

    kind: name by which `decode.restore` knows it
    run_id: its run
    tree_id: its tree
    sequence: number of the message in the stream; 0 for facts that come from elsewhere
    message: the fact as it was sent
    """

    kind: ClassVar[str] = ""
    run_id: str
    tree_id: bytes
    sequence: int
    message: Message

    def payload(self) -> bytes:
        """Return the fact as bytes, from which `decode.restore` makes it again."""
        return self.message.SerializeToString()


@dataclass(frozen=True, slots=True)
class TreeOpened(Event):
    """A tree that the gateway opened."""

    kind: ClassVar[str] = "opened"
    message: events_pb2.TreeOpened


@dataclass(frozen=True, slots=True)
class GrownSegment(Event):
    """A segment under a claim."""

    kind: ClassVar[str] = "segment"
    message: events_pb2.GrownSegment
    segment: Segment


@dataclass(frozen=True, slots=True)
class LargeSegment(Event):
    """A segment under a claim, with its bytes in a blob."""

    kind: ClassVar[str] = "segment"
    message: events_pb2.GrownSegment


@dataclass(frozen=True, slots=True)
class GrownPlan(Event):
    """A plan that was executed under a claim."""

    kind: ClassVar[str] = "plan"
    message: events_pb2.GrownPlan


@dataclass(frozen=True, slots=True)
class LeafFinished(Event):
    """A path that ended at a leaf, or a place that was put before scorers."""

    kind: ClassVar[str] = "leaf"
    message: events_pb2.LeafFinished
    leaf: Leaf


@dataclass(frozen=True, slots=True)
class TreeGrown(Event):
    """A tree without live branches.

    leaves: its leaves
    inside: places inside paths that were put before scorers
    """

    kind: ClassVar[str] = "grown"
    message: events_pb2.TreeGrown
    leaves: tuple[Leaf, ...]
    inside: tuple[Leaf, ...] = ()

    def leaves_digest(self) -> bytes:
        """Return the digest of the leaves, whatever their order."""
        return digest.blake(
            *(leaf.segment + leaf.end.to_bytes(4, "little") for leaf in sorted(self.leaves))
        )


@dataclass(frozen=True, slots=True)
class LeafScored(Event):
    """A score of a leaf by one scorer."""

    kind: ClassVar[str] = "score"
    message: events_pb2.LeafScored
    leaf: Leaf


def message_of(event: Event) -> tuple[str, Message]:
    """Return the last token of a subject, and the message for it that holds this event alone."""
    run_id = event.run_id
    match event:
        case TreeOpened():
            return "opened", events_pb2.TreesOpened(trees=[event.message])
        case GrownSegment() | LargeSegment():
            return "segment", events_pb2.SegmentsGrown(run_id=run_id, segments=[event.message])
        case GrownPlan():
            return "segment", events_pb2.SegmentsGrown(run_id=run_id, plans=[event.message])
        case LeafFinished():
            return "leaf", events_pb2.LeavesFinished(leaves=[event.message])
        case TreeGrown():
            return "grown", events_pb2.TreesGrown(trees=[event.message])
        case LeafScored():
            return "score", events_pb2.LeavesScored(scores=[event.message])
    return event.kind, event.message
