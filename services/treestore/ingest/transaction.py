"""Ingest: many messages, one transaction, the same result however often and in whatever order they come (PROTOCOL 2, 4)."""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, delete

from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.treestore.events.decode import decode
from services.treestore.events.events import (
    Event,
    GrownPlan,
    GrownSegment,
    LeafFinished,
    LeafScored,
    TreeGrown,
    TreeOpened,
)
from services.treestore.ingest import blobs, texts
from services.treestore.ingest.apply import accept
from services.treestore.ingest.rules import Disposition, Ruling, judge
from services.treestore.lifecycle import transitions
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.load import LOST, load_for
from services.treestore.unit_of_work.unit_of_work import UnitOfWork, event_digest, segment_key
from services.treestore.unit_of_work.write import flush

log = logging.getLogger(__name__)
SERVICE = "treestore"


class Unfit(Exception):
    """Our own code raised on an event that was parked, and not on the message that released it, which is not to blame."""

    def __init__(self, event: Event, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.event = event


@dataclass(frozen=True, slots=True)
class Item:
    """A message of the log."""

    subject: str
    data: bytes
    sequence: int
    attempts: int = 1
    stream: str = subjects.LINEAGE


@dataclass(slots=True)
class Outcome:
    """What a transaction did, for waiters, traces and metrics."""

    touched: frozenset[bytes] = frozenset()
    runs: frozenset[str] = frozenset()  # of the trees touched
    traceparents: dict[bytes, str] = field(default_factory=dict)
    ended: list[tuple[int, str]] = field(
        default_factory=list
    )  # state and reason of each tree that ended
    segments: int = 0
    refused: list[str] = field(default_factory=list)
    late: int = 0
    dead: int = 0
    told: int = 0  # events put into the outbox


def ingest(
    connection: Connection, items: Sequence[Item], now_ms: int, settings: Settings
) -> Outcome:
    """Stores the messages. Raises where the database does, and Unfit; what is wrong with a message is kept as a row."""
    book = UnitOfWork(now_ms, settings)
    decoded = [(item, *decode(item.subject, item.data, item.sequence)) for item in items]
    events, lost, blobs_of = blobs.resolve(
        connection, [event for _, found, _ in decoded for event in found]
    )
    load_for(connection, book, events)
    about: dict[int, bytes] = {}  # the tree of what is wrong with a message
    problems: dict[int, list[str]] = {
        item.sequence: list(wrong) for item, _, wrong in decoded if wrong
    }
    mine = {id(event) for event in events} | {
        id(event) for event, _ in lost
    }  # not by sequence: a log that was wiped counts from one again
    for event, reason in [*lost, *settle(book, events)]:
        blobs_of.pop(id(event), None)  # whoever replays the letter needs it
        if id(event) in mine:
            problems.setdefault(event.sequence, []).append(reason)
            about.setdefault(event.sequence, event.tree_id)
        else:  # it was parked by an earlier message
            bury_event(book, event, reason)
    _bury(book, items, problems, about)
    texts.decode(connection, book)
    flush(connection, book)
    blobs.spend(connection, blobs_of.values())
    return outcome(book)


def apply(
    connection: Connection, book: UnitOfWork, events: Sequence[Event], keys: Collection[bytes] = ()
) -> None:
    """Stores events that do not come from a message just read, and those that wait for `keys`."""
    load_for(connection, book, events, keys)
    released = [event for key in keys for event in book.release(key)]
    for event, reason in settle(book, [*events, *released]):
        bury_event(book, event, reason)
    texts.decode(connection, book)


def settle(book: UnitOfWork, events: Iterable[Event]) -> list[tuple[Event, str]]:
    """Judges and applies the events and all that they release, then closes trees. Returns those that can never be right.

    Raises Unfit for a released one on which our own code raises.
    """
    hopeless: list[tuple[Event, str]] = []
    given, released = list(events), deque[Event]()
    for event in given:
        released.extend(_settled(book, event, hopeless))
    while released:
        event = released.popleft()
        try:
            released.extend(_settled(book, event, hopeless))
        except Exception as error:
            raise Unfit(event, error) from error
    transitions.settle(book)
    return hopeless


def _settled(book: UnitOfWork, event: Event, hopeless: list[tuple[Event, str]]) -> list[Event]:
    """Judges and applies one event; those that waited for it."""
    verdict = judge(book, event)
    if verdict.end is Disposition.BURY:
        hopeless.append((event, verdict.reason))
    return _carry_out(book, event, verdict)


def _carry_out(book: UnitOfWork, event: Event, verdict: Ruling) -> list[Event]:
    match verdict.end:
        case Disposition.ACCEPT:
            return accept(book, event)
        case Disposition.PARK:
            book.park(event, verdict.key)
        case Disposition.REFUSE:
            return _refuse(book, event, verdict)
        case Disposition.LATE:
            book.add_late(event, verdict.reason)
    return []


def _refuse(book: UnitOfWork, event: Event, verdict: Ruling) -> list[Event]:
    segment, end, epoch = _place(event)
    book.refuse(event, epoch, verdict.reason, segment, end, verdict.winner)
    if isinstance(event, GrownSegment) and verdict.reason in LOST:
        book.lost.add(segment)
        return book.release(segment_key(segment))
    return []


def _place(event: Event) -> tuple[bytes, int, int]:
    match event:
        case GrownSegment():
            return event.segment.id, 0, event.message.claim_epoch
        case GrownPlan():
            return b"", 0, event.message.plan.claim_epoch
        case LeafFinished():
            return event.leaf.segment, event.leaf.end, event.message.claim_epoch
        case TreeGrown():
            return b"", 0, event.message.claim_epoch
        case LeafScored():
            return event.leaf.segment, event.leaf.end, 0
        case TreeOpened():
            return b"", 0, event.message.gateway_epoch
    return b"", 0, 0


def _bury(
    book: UnitOfWork,
    items: Iterable[Item],
    problems: dict[int, list[str]],
    about: Mapping[int, bytes],
) -> None:
    for item in items:
        reasons = problems.pop(item.sequence, None)
        if reasons:
            bury_item(book, item, "; ".join(reasons[:5]), about.get(item.sequence, b""))


def bury_item(book: UnitOfWork, item: Item, reason: str, tree_id: bytes = b"") -> None:
    """Gives a message up; `tree_id`: the tree that it is about, if it is known."""
    log.error("dead letter: %s #%d on %s: %s", item.stream, item.sequence, item.subject, reason)
    book.bury(
        events_pb2.DeadLetter(
            stream=item.stream,
            subject=item.subject,
            sequence=item.sequence,
            payload=item.data,
            reason=reason,
            attempts=item.attempts,
            service=SERVICE,
        ),
        tree_id,
    )


def bury_event(book: UnitOfWork, event: Event, reason: str) -> None:
    """Gives up an event that was parked, in a message of its own."""
    data, kind = event.payload(), event.kind
    match event:
        case TreeOpened():
            data = events_pb2.TreesOpened(trees=[event.message]).SerializeToString()
        case GrownSegment():
            data = events_pb2.SegmentsGrown(
                run_id=event.run_id, segments=[event.message]
            ).SerializeToString()
        case GrownPlan():
            data = events_pb2.SegmentsGrown(
                run_id=event.run_id, plans=[event.message]
            ).SerializeToString()
            kind = "segment"
        case LeafFinished():
            data = events_pb2.LeavesFinished(leaves=[event.message]).SerializeToString()
        case TreeGrown():
            data = events_pb2.TreesGrown(trees=[event.message]).SerializeToString()
        case LeafScored():
            data = events_pb2.LeavesScored(scores=[event.message]).SerializeToString()
    bury_item(
        book,
        Item(subjects.lineage(event.run_id, kind), data, event.sequence),
        reason,
        event.tree_id,
    )


def give_up_parked(
    connection: Connection, event: Event, reason: str, now_ms: int, settings: Settings
) -> bool:
    """Make a dead letter of an event that is parked; False if it is not."""
    parked = schema.parked
    gone = connection.execute(delete(parked).where(parked.c.digest == event_digest(event))).rowcount
    if gone:
        book = UnitOfWork(now_ms, settings)
        bury_event(book, event, reason)
        flush(connection, book)
    return bool(gone)


def outcome(book: UnitOfWork) -> Outcome:
    """What the book did."""
    return Outcome(
        touched=frozenset(book.touched),
        runs=frozenset(book.trees[i].run_id for i in book.touched if i in book.trees),
        traceparents={i: book.trees[i].traceparent for i in book.touched if i in book.trees},
        ended=[(tree.state, tree.reason) for tree in book.ended],
        segments=len(book.new_segments),
        refused=[str(values["reason"]) for values in book.new_refused],
        late=len(book.new_late),
        dead=len(book.new_dead),
        told=len(book.new_outbox),
    )
