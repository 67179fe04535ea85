"""Dead letters: messages that cannot be processed, built and turned into rows here alone."""

from banyan.digest import blake
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.treestore.storage.mapping import Values

SERVICE = "treestore"


def build(
    *,
    stream: str,
    sequence: int,
    reason: str,
    attempts: int,
    subject: str = "",
    payload: bytes = b"",
    service: str = SERVICE,
) -> events_pb2.DeadLetter:
    """Return the letter of a message; without subject and payload where these are unknown."""
    return events_pb2.DeadLetter(
        stream=stream,
        subject=subject,
        sequence=sequence,
        payload=payload,
        reason=reason,
        attempts=attempts,
        service=service,
    )


def to_columns(letter: events_pb2.DeadLetter, now_ms: int, node: str = "") -> Values:
    """Return the row of a letter; `node` claims the tree that it is about."""
    data = letter.SerializeToString()
    return {
        "service": letter.service,
        "stream": letter.stream,
        "sequence": letter.sequence,
        "letter": data,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "stored_ms": now_ms,
        "digest": blake(letter.subject.encode(), letter.payload),
        "run_id": subjects.run_of(letter.subject),
        "node": node,
        "bytes": len(data),
    }


def message_id(letter: events_pb2.DeadLetter) -> str:
    """Return the id under which a letter is published: the same message has the same id."""
    place = (letter.service.encode(), str(letter.sequence).encode(), letter.subject.encode())
    return f"dead-{blake(*place, letter.payload).hex()}"
