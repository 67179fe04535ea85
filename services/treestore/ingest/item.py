"""A message of the log, as ingest takes it."""

from dataclasses import dataclass

from services.chassis.messaging import subjects


@dataclass(frozen=True, slots=True)
class Item:
    """A message of a stream.

    subject: subject that it was published on
    data: its payload
    sequence: its number in the stream
    attempts: deliveries so far
    stream: name of the stream
    """

    subject: str
    data: bytes
    sequence: int
    attempts: int = 1
    stream: str = subjects.LINEAGE
