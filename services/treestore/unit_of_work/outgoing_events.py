"""Events that go out if, and only if, their transaction is committed."""

from dataclasses import dataclass, field

from google.protobuf.message import Message

from banyan.digest import blake
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.treestore.storage.mapping import Values


@dataclass(slots=True)
class OutgoingEvents:
    """The events that a transaction records.

    rows: rows of the outbox, in order
    closings: trees that ended, by run; one event has many of them
    """

    rows: list[Values] = field(default_factory=list)
    closings: dict[str, list[events_pb2.TreeClosed]] = field(default_factory=dict)

    def record(self, subject: str, msg_id: str, message: Message, traceparent: str = "") -> None:
        """Record an event for the outbox."""
        self.rows.append(
            {
                "subject": subject,
                "msg_id": msg_id,
                "payload": message.SerializeToString(),
                "traceparent": traceparent,
            }
        )

    def record_closing(self, closed: events_pb2.TreeClosed) -> None:
        """Record that a tree ended."""
        self.closings.setdefault(closed.run_id, []).append(closed)

    def pack_closings(self) -> None:
        """Put the ends of a run's trees into few events, so that a waiter reads the store once."""
        for run_id, trees in self.closings.items():
            for start in range(0, len(trees), subjects.MOST_TREES):
                part = trees[start : start + subjects.MOST_TREES]
                name = blake(*sorted(tree.tree_id + bytes([tree.state]) for tree in part)).hex()
                message = events_pb2.TreesClosed(trees=part)
                self.record(subjects.lineage(run_id, "closed"), f"closed-{name}", message)
        self.closings = {}
