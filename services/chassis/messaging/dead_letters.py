"""Dead letters: messages that a service cannot process, published on DEAD with the reason."""

from banyan.v1 import events_pb2
from services.chassis.messaging.chunks import BROKER_BYTES, HEADER_BYTES
from services.chassis.messaging.delivery import Delivery

_MAX_REASON = 2000  # characters
_MAX_PAYLOAD = BROKER_BYTES - 2 * HEADER_BYTES  # leaves room for the letter's other fields


def dead_letter(
    delivery: Delivery, *, stream: str, reason: str, service: str
) -> events_pb2.DeadLetter:
    """Return the dead letter of a delivery.

    A message that fills a letter by itself is left out; the reason then states its size.
    """
    payload, reason = delivery.data, reason[:_MAX_REASON]
    if len(payload) > _MAX_PAYLOAD:
        payload, reason = b"", f"{reason} (its {len(payload)} bytes fit into no letter)"
    return events_pb2.DeadLetter(
        stream=stream,
        subject=delivery.subject,
        sequence=delivery.sequence,
        payload=payload,
        reason=reason,
        attempts=delivery.attempts,
        service=service,
    )


def message_id(letter: events_pb2.DeadLetter) -> str:
    """Return the message id of a letter: one letter of a service about a message is stored."""
    return f"dead-{letter.service}-{letter.stream}-{letter.sequence}"
