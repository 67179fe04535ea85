"""Ingest: many messages in one transaction, with the same result however often and in whatever
order they come.

See docs/protocol.md, What becomes of an event.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection

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
from services.treestore.ingest.dead_letters import dead_letter_event, dead_letter_item
from services.treestore.ingest.item import Item
from services.treestore.ingest.outcome import Outcome, outcome
from services.treestore.ingest.rules import Disposition, Ruling, judge
from services.treestore.lifecycle import transitions
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.load import load_for
from services.treestore.unit_of_work.load_parts import LOST
from services.treestore.unit_of_work.parked_events import segment_key
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

_MAX_PROBLEMS = 5  # that the reason of a letter names


class Unfit(Exception):
    """An error of our own code on a parked event; the message that released it is not to blame."""

    def __init__(self, event: Event, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.event = event


class _Problems:
    """The problems of messages, by sequence, with the tree that each is about."""

    def __init__(self) -> None:
        self._reasons: dict[int, list[str]] = {}
        self._trees: dict[int, bytes] = {}

    def add(self, sequence: int, reasons: Iterable[str], tree_id: bytes = b"") -> None:
        self._reasons.setdefault(sequence, []).extend(reasons)
        if tree_id:
            self._trees.setdefault(sequence, tree_id)

    def dead_letter(self, work: UnitOfWork, items: Iterable[Item]) -> None:
        """Make a dead letter of each message with problems, once."""
        for item in items:
            reasons = self._reasons.pop(item.sequence, [])
            if reasons:
                reason = "; ".join(reasons[:_MAX_PROBLEMS])
                dead_letter_item(work, item, reason, self._trees.get(item.sequence, b""))


def ingest(
    connection: Connection, items: Sequence[Item], now_ms: int, settings: Settings
) -> Outcome:
    """Store messages; problems of a message are kept as rows.

    Raises the errors of the database, and Unfit.
    """
    work, problems = UnitOfWork(now_ms, settings), _Problems()
    decoded: list[Event] = []
    for item in items:
        events_of_item, wrong = decode(item.subject, item.data, item.sequence)
        decoded += events_of_item
        problems.add(item.sequence, wrong)
    resolved = blobs.resolve(connection, decoded)
    events, used_blobs = resolved.events, resolved.blobs
    load_for(connection, work, events)
    # By identity and not by sequence: a log that was wiped counts from one again.
    own = {id(event) for event in events} | {id(event) for event, _ in resolved.unusable}
    for event, reason in [*resolved.unusable, *settle(work, events)]:
        used_blobs.pop(id(event), None)  # a replay of the letter needs it
        if id(event) in own:
            problems.add(event.sequence, [reason], event.tree_id)
        else:  # it was parked by an earlier message
            dead_letter_event(work, event, reason)
    problems.dead_letter(work, items)
    texts.decode(connection, work)
    flush(connection, work)
    blobs.remove(connection, used_blobs.values())
    return outcome(work)


def apply(
    connection: Connection, work: UnitOfWork, events: Sequence[Event], keys: Collection[bytes] = ()
) -> None:
    """Judge events that do not come from a new message, and those that wait for `keys`."""
    load_for(connection, work, events, keys)
    released = [event for key in keys for event in work.parked.release(key)]
    for event, reason in settle(work, [*events, *released]):
        dead_letter_event(work, event, reason)
    texts.decode(connection, work)


def settle(work: UnitOfWork, events: Iterable[Event]) -> list[tuple[Event, str]]:
    """Judge and apply the events and all that they release, then close trees.

    Returns the events that can never be right, with the reasons. Raises Unfit for a released event
    on which our own code raises.
    """
    hopeless: list[tuple[Event, str]] = []
    released = deque[Event]()
    for event in list(events):
        released.extend(_judge_and_apply(work, event, hopeless))
    while released:
        event = released.popleft()
        try:
            released.extend(_judge_and_apply(work, event, hopeless))
        except Exception as error:  # any defect of ours: only the parked event is given up
            raise Unfit(event, error) from error
    transitions.close_scored(work)
    return hopeless


def _judge_and_apply(
    work: UnitOfWork, event: Event, hopeless: list[tuple[Event, str]]
) -> list[Event]:
    """Judge and apply one event, and return those that waited for it."""
    ruling = judge(work, event)
    match ruling.disposition:
        case Disposition.ACCEPT:
            return accept(work, event)
        case Disposition.PARK:
            work.park(event, ruling.key)
        case Disposition.REFUSE:
            return _refuse(work, event, ruling)
        case Disposition.LATE:
            work.add_late(event, ruling.reason)
        case Disposition.DEAD_LETTER:
            hopeless.append((event, ruling.reason))
    return []


def _refuse(work: UnitOfWork, event: Event, ruling: Ruling) -> list[Event]:
    segment, end, epoch = _place(event)
    work.refuse(event, epoch, ruling.reason, segment=segment, end=end, winner=ruling.winner)
    if isinstance(event, GrownSegment) and ruling.reason in LOST:
        work.lost.add(segment)
        return work.parked.release(segment_key(segment))
    return []


def _place(event: Event) -> tuple[bytes, int, int]:
    """Return segment, end and epoch of an event, as `refused` stores them."""
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
