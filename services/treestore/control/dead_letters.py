"""Stored dead letters: listed, and published again."""

from typing import Any

from sqlalchemy import Connection, Row, select, update

from banyan.errors import NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.storage import schema
from services.treestore.storage.mapping import Values
from services.treestore.unit_of_work.write import record_events

_DEFAULT_LIMIT = 100
_MAX_LIMIT = 10_000
_REASON_CHARACTERS = 1000  # that are listed
_PAYLOAD_BYTES = 4 << 20  # of messages that are listed
_LAST = 2**63 - 1  # number that a database holds


def read(connection: Connection, request: rs.ReadDeadRequest) -> rs.ReadDeadResponse:
    """Return letters, newest first; the newest with their messages, as many as fit in an answer."""
    table, limit = schema.dead, min(request.limit or _DEFAULT_LIMIT, _MAX_LIMIT)
    query = select(table).order_by(table.c.n.desc()).limit(limit)
    if request.before:
        query = query.where(table.c.n < min(request.before, _LAST))
    response, capacity = rs.ReadDeadResponse(), _PAYLOAD_BYTES
    for row in connection.execute(query):
        listed = _listed(row)
        capacity -= listed.payload_bytes
        if capacity < 0:
            listed.letter.ClearField("payload")
        response.letters.append(listed)
    return response


def _listed(row: Row[Any]) -> rs.StoredDeadLetter:
    letter = events_pb2.DeadLetter.FromString(row.letter)
    letter.reason = letter.reason[:_REASON_CHARACTERS]
    return rs.StoredDeadLetter(
        id=row.n,
        letter=letter,
        stored_unix_ms=row.stored_ms,
        replayed=row.replays > 0,
        payload_bytes=len(letter.payload),
    )


def replay(connection: Connection, number: int) -> None:
    """Put a letter's message into the outbox, for its own subject; it may be replayed again.

    Raises NotFound for an unknown letter, and Refused if its message was not kept.
    """
    table = schema.dead
    row = connection.execute(select(table).where(table.c.n == number)).first()
    if row is None:
        raise NotFound(f"there is no dead letter {number}; `banyan dead ls` lists them")
    letter = events_pb2.DeadLetter.FromString(row.letter)
    if not letter.payload or not letter.subject:
        raise Refused(
            f"dead letter {number} cannot be replayed: its message was not kept, as it was too"
            " large for a letter or the broker gave it up; only its place is known,"
            f" sequence {letter.sequence} of {letter.stream}",
            Reason.NO_PAYLOAD,
        )
    connection.execute(update(table).where(table.c.n == number).values(replays=table.c.replays + 1))
    values: Values = {
        "subject": letter.subject,
        "msg_id": f"replay-{number}-{row.replays + 1}",
        "payload": letter.payload,
        "traceparent": "",
    }
    record_events(connection, [values])
