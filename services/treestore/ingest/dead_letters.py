"""Dead letters of messages and parked events, and the letters that come from the DEAD stream."""

import json
import logging
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from sqlalchemy import Connection, delete, select

from banyan.errors import InvalidInput
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.treestore.events.events import Event, message_of
from services.treestore.ingest.item import Item
from services.treestore.storage import schema
from services.treestore.storage.mapping import Values
from services.treestore.storage.settings import Settings
from services.treestore.storage.sql import insert_ignore
from services.treestore.unit_of_work import dead_letters, retention
from services.treestore.unit_of_work.parked_events import event_digest
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

log = logging.getLogger(__name__)
_SEQUENCE_LIMIT = 1 << 63
_KEY = ("service", "stream", "sequence", "digest")


def dead_letter_item(work: UnitOfWork, item: Item, reason: str, tree_id: bytes = b"") -> None:
    """Make a dead letter of a message; `tree_id`: the tree that it is about, if known."""
    log.error("dead letter: %s #%d on %s: %s", item.stream, item.sequence, item.subject, reason)
    letter = dead_letters.build(
        stream=item.stream,
        subject=item.subject,
        sequence=item.sequence,
        payload=item.data,
        reason=reason,
        attempts=item.attempts,
    )
    work.dead_letter(letter, tree_id)


def dead_letter_event(work: UnitOfWork, event: Event, reason: str) -> None:
    """Make a dead letter of an event that was parked, as a message of its own."""
    kind, message = message_of(event)
    subject = subjects.lineage(event.run_id, kind)
    item = Item(subject, message.SerializeToString(), event.sequence)
    dead_letter_item(work, item, reason, event.tree_id)


def dead_letter_parked(
    connection: Connection, event: Event, reason: str, now_ms: int, settings: Settings
) -> bool:
    """Make a dead letter of a parked event; return False if it is not parked."""
    parked = schema.parked
    same = parked.c.digest == event_digest(event)
    if not connection.execute(delete(parked).where(same)).rowcount:
        return False
    work = UnitOfWork(now_ms, settings)
    dead_letter_event(work, event, reason)
    flush(connection, work)
    return True


def letter_of(item: Item) -> events_pb2.DeadLetter:
    """Return the letter in a message of the DEAD stream: a service's, or an advisory of the broker.

    Raises InvalidInput if the message is neither.
    """
    try:
        advisory = item.subject.startswith("$JS.")
        letter = _advised(item.data) if advisory else events_pb2.DeadLetter.FromString(item.data)
    except (DecodeError, AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{len(item.data)} bytes on {item.subject} are no dead letter: {error}"
        ) from None
    if letter.sequence >= _SEQUENCE_LIMIT:
        raise InvalidInput(
            f"a dead letter on {item.subject} has sequence {letter.sequence},"
            " which no stream reaches"
        )
    return letter


def _advised(data: bytes) -> events_pb2.DeadLetter:
    """Return the letter of a message that the broker delivers no more: only its place is known."""
    advisory = json.loads(data)
    return dead_letters.build(
        stream=str(advisory.get("stream", "")),
        sequence=int(advisory.get("stream_seq", 0)),
        reason=f"MAX_DELIVERIES: consumer {advisory.get('consumer', '')!r} was given it too often",
        attempts=int(advisory.get("deliveries", 0)),
        service="nats-server",
    )


def store(
    connection: Connection,
    letters: Sequence[events_pb2.DeadLetter],
    now_ms: int,
    settings: Settings | None = None,
) -> None:
    """Store the letters that fit and are new; the store's own letters come back from the log."""
    rows = [dead_letters.to_columns(letter, now_ms) for letter in letters]
    new = [values for values in rows if not _is_stored(connection, values)]
    kept = retention.fitting(connection, schema.dead, new, settings or Settings())
    insert_ignore(connection, schema.dead, kept)


def _is_stored(connection: Connection, values: Values) -> bool:
    table = schema.dead
    same = (table.c[name] == values[name] for name in _KEY)
    return connection.execute(select(table.c.n).where(*same)).first() is not None
