"""A delivery of a message from the log, and the answers to it."""

import contextlib
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from banyan.errors import InvalidInput

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery of a message.

    Answers are not confirmed: a lost one means a redelivery, which every handler must tolerate.
    """

    message: Msg

    @property
    def subject(self) -> str:
        return self.message.subject

    @property
    def data(self) -> bytes:
        return self.message.data

    @property
    def sequence(self) -> int:
        """Sequence in the stream."""
        return self.message.metadata.sequence.stream

    @property
    def attempts(self) -> int:
        """Number of deliveries, this one included."""
        return self.message.metadata.num_delivered

    @property
    def traceparent(self) -> str:
        return (self.message.headers or {}).get("traceparent", "")

    @property
    def run_id(self) -> str:
        """Run that the subject names, its second part; empty if it has none."""
        parts = self.subject.split(".")
        return parts[1] if len(parts) > 1 else ""

    def decode(self, cls: type[M]) -> M:
        """Return the payload as a message. Raise InvalidInput if the bytes are not one."""
        try:
            message = cls()
            message.ParseFromString(self.data)
            return message
        except DecodeError:
            size, name = len(self.data), cls.DESCRIPTOR.full_name
            raise InvalidInput(f"{size} bytes on {self.subject} are not a {name}") from None

    async def ack(self) -> None:
        await self._answer(self.message.ack())

    async def nak(self, delay_s: float) -> None:
        """Have it delivered again after `delay_s` seconds."""
        await self._answer(self.message.nak(delay=delay_s))

    async def in_progress(self) -> None:
        """Restart the wait for the acknowledgement."""
        await self._answer(self.message.in_progress())

    async def term(self) -> None:
        """Have it never delivered again."""
        await self._answer(self.message.term())

    @staticmethod
    async def _answer(answer: object) -> None:
        # Without a connection the answer is lost, and the broker delivers the message again.
        with contextlib.suppress(NatsError):
            await answer  # type: ignore[misc]
