"""The outside of the treestore, as its loops use it; `services.chassis.messaging.bus.Bus` is the
real one.
"""

from collections.abc import Sequence
from typing import Protocol


class Publisher(Protocol):
    """A publisher that waits for acknowledgements."""

    async def publish_bytes(
        self,
        subject: str,
        data: bytes,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        """Publish a message, and return its sequence in the stream.

        Raises DeadlineMissed, or InvalidInput if the broker will never take it.
        """
        ...


class Message(Protocol):
    """A delivery of the log."""

    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def sequence(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    async def ack(self) -> None: ...
    async def nak(self, delay_s: float) -> None: ...


class Source(Protocol):
    """A durable consumer."""

    async def fetch(self, batch: int, timeout_s: float) -> Sequence[Message]:
        """Return up to `batch` messages; none after `timeout_s`."""
        ...
