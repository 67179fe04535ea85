"""Events that wait for a fact that must come first."""

from dataclasses import dataclass, field

from banyan.digest import blake
from services.treestore.events.events import Event


@dataclass(slots=True)
class ParkedEvent:
    """An event that waits.

    event: the event
    waits_for: key of the fact that must come first
    row: number of its row; 0 before it is stored
    """

    event: Event
    waits_for: bytes
    row: int = 0


@dataclass(slots=True)
class ParkedEvents:
    """The parked events of a transaction, each once.

    by_key: events by the key that they wait for
    digests: digests of these events
    released_rows: rows of released events, to be deleted
    """

    by_key: dict[bytes, list[ParkedEvent]] = field(default_factory=dict)
    digests: set[bytes] = field(default_factory=set)
    released_rows: list[int] = field(default_factory=list)

    def add(self, parked: ParkedEvent) -> None:
        """Add an event, unless the same one waits already."""
        digest = event_digest(parked.event)
        if digest not in self.digests:
            self.digests.add(digest)
            self.by_key.setdefault(parked.waits_for, []).append(parked)

    def events(self) -> list[Event]:
        """Return all events that wait."""
        return [parked.event for waiting in self.by_key.values() for parked in waiting]

    def new(self) -> list[ParkedEvent]:
        """Return the events that have no row yet."""
        return [parked for waiting in self.by_key.values() for parked in waiting if not parked.row]

    def release(self, key: bytes) -> list[Event]:
        """Remove the events that wait for `key`, and return them."""
        waiting = self.by_key.pop(key, [])
        self.released_rows += [parked.row for parked in waiting if parked.row]
        self.digests -= {event_digest(parked.event) for parked in waiting}
        return [parked.event for parked in waiting]


def event_digest(event: Event) -> bytes:
    """Return the digest by which two parked events are the same."""
    return blake(event.kind.encode(), event.payload())


def tree_key(tree_id: bytes) -> bytes:
    """Return the key that an event waits for if it came before its tree."""
    return b"T" + tree_id


def segment_key(segment: bytes) -> bytes:
    """Return the key that an event waits for if it came before its segment."""
    return b"S" + segment


def run_key(run_id: str) -> bytes:
    """Return the key that a tree waits for if it came before its run."""
    return b"R" + run_id.encode()
