"""Dead letters as rows: what no service could process, the reason, and the way back (PROTOCOL 4)."""

import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError
from sqlalchemy import Connection, Row, select, update

from banyan.errors import InvalidInput, NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.ingest.transaction import Item
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.storage.sql import insert_ignore
from services.treestore.unit_of_work import retention
from services.treestore.unit_of_work.unit_of_work import Values, dead_values
from services.treestore.unit_of_work.write import tell

_DEFAULT_LIMIT, _MOST = 100, 10_000
_REASON = 1000  # characters that are listed
_PAYLOADS = 4 << 20  # bytes of messages that are listed
_MOST_SEQUENCE = 1 << 63


def letter_of(item: Item) -> events_pb2.DeadLetter:
    """The letter in a message of the DEAD stream: a service's, or the broker's word that it delivers no more.

    Raises InvalidInput if it is neither.
    """
    try:
        letter = (
            _advised(item.data)
            if item.subject.startswith("$JS.")
            else events_pb2.DeadLetter.FromString(item.data)
        )
    except (DecodeError, AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{len(item.data)} bytes on {item.subject} are no dead letter: {error}"
        ) from None
    if letter.sequence >= _MOST_SEQUENCE:
        raise InvalidInput(
            f"a dead letter on {item.subject} has sequence {letter.sequence}, which no stream reaches"
        )
    return letter


def _advised(data: bytes) -> events_pb2.DeadLetter:
    advisory = json.loads(data)
    return events_pb2.DeadLetter(
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
    """Keeps letters that there is room for; those that are there already change nothing."""
    rows = [dead_values(letter, now_ms) for letter in letters]
    insert_ignore(
        connection,
        schema.dead,
        retention.fitting(connection, schema.dead, _new(connection, rows), settings or Settings()),
    )


def _new(connection: Connection, rows: Sequence[Values]) -> list[Values]:
    """Those that are not there: the store's own letters come back from the log."""
    table, key = schema.dead, ("service", "stream", "sequence", "digest")
    there = select(table.c.n)
    return [
        values
        for values in rows
        if connection.execute(there.where(*(table.c[name] == values[name] for name in key))).first()
        is None
    ]


def read(connection: Connection, limit: int) -> rs.ReadDeadResponse:
    """Letters, newest first; the newest with their messages, as many as an answer may hold."""
    table = schema.dead
    rows = connection.execute(
        select(table).order_by(table.c.n.desc()).limit(min(limit or _DEFAULT_LIMIT, _MOST))
    )
    response, room = rs.ReadDeadResponse(), _PAYLOADS
    for row in rows:
        listed = _listed(row)
        room -= listed.payload_bytes
        if room < 0:
            listed.letter.ClearField("payload")
        response.letters.append(listed)
    return response


def _listed(row: Row[Any]) -> rs.StoredDeadLetter:
    letter = events_pb2.DeadLetter.FromString(row.letter)
    letter.reason = letter.reason[:_REASON]
    size, again = len(letter.payload), row.replays > 0
    return rs.StoredDeadLetter(
        id=row.n, letter=letter, stored_unix_ms=row.stored_ms, replayed=again, payload_bytes=size
    )


def replay(connection: Connection, number: int) -> None:
    """Puts a letter's message into the outbox, for its own subject. It may be replayed again."""
    table = schema.dead
    row = connection.execute(select(table).where(table.c.n == number)).first()
    if row is None:
        raise NotFound(f"there is no dead letter {number}; `banyan dead ls` lists them")
    letter = events_pb2.DeadLetter.FromString(row.letter)
    if not letter.payload or not letter.subject:
        raise Refused(
            f"dead letter {number} cannot be replayed: its message was not kept, as it was too large for a letter or the"
            f" broker gave it up; only its place is known, sequence {letter.sequence} of {letter.stream}",
            Reason.NO_PAYLOAD,
        )
    connection.execute(update(table).where(table.c.n == number).values(replays=table.c.replays + 1))
    values: Values = {
        "subject": letter.subject,
        "msg_id": f"replay-{number}-{row.replays + 1}",
        "payload": letter.payload,
        "traceparent": "",
    }
    tell(connection, [values])
