"""The facts that messages of the log hold, one class a kind. A fact is the unit of judging, parking and refusing."""

from dataclasses import dataclass
from typing import ClassVar

from banyan import digest
from banyan.segment import Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2


@dataclass(frozen=True, slots=True)
class Event:
    """One fact of a message. `sequence` is the message's in the stream; 0 for facts that did not come from there."""

    kind: ClassVar[str] = ""
    run_id: str
    tree_id: bytes
    sequence: int

    def payload(self) -> bytes:
        """The fact as bytes, from which `restore` makes it again."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TreeOpened(Event):
    kind: ClassVar[str] = "opened"
    message: events_pb2.TreeOpened

    def payload(self) -> bytes:
        return self.message.SerializeToString()


@dataclass(frozen=True, slots=True)
class GrownSegment(Event):
    """A segment under a claim."""

    kind: ClassVar[str] = "segment"
    message: events_pb2.GrownSegment
    segment: Segment

    def payload(self) -> bytes:
        return self.message.SerializeToString()


@dataclass(frozen=True, slots=True)
class Large(Event):
    """A segment under a claim whose bytes are in a blob."""

    kind: ClassVar[str] = "segment"
    message: events_pb2.GrownSegment

    def payload(self) -> bytes:
        return self.message.SerializeToString()


@dataclass(frozen=True, slots=True)
class GrownPlan(Event):
    """A plan that was executed under a claim."""

    kind: ClassVar[str] = "plan"
    message: events_pb2.GrownPlan

    def payload(self) -> bytes:
        return self.message.SerializeToString()


@dataclass(frozen=True, slots=True)
class LeafFinished(Event):
    """A path ended at a leaf."""

    kind: ClassVar[str] = "leaf"
    message: events_pb2.LeafFinished
    leaf: Leaf

    def payload(self) -> bytes:
        return self.message.SerializeToString()


@dataclass(frozen=True, slots=True)
class TreeGrown(Event):
    """No branch of the tree is live."""

    kind: ClassVar[str] = "grown"
    message: events_pb2.TreeGrown
    leaves: tuple[Leaf, ...]
    inside: tuple[Leaf, ...] = ()

    def payload(self) -> bytes:
        return self.message.SerializeToString()

    def leaves_digest(self) -> bytes:
        """Digest of the listed leaves, whatever their order."""
        return digest.blake(
            *(leaf.segment + leaf.end.to_bytes(4, "little") for leaf in sorted(self.leaves))
        )


@dataclass(frozen=True, slots=True)
class LeafScored(Event):
    """A scorer's word on a leaf."""

    kind: ClassVar[str] = "score"
    message: events_pb2.LeafScored
    leaf: Leaf

    def payload(self) -> bytes:
        return self.message.SerializeToString()
