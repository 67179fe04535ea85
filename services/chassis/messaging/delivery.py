"""A message taken from the log, and what can be said back about it."""

from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from banyan.errors import InvalidInput

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery. Acks are fire-and-forget: a lost one means a redelivery, which every handler must bear anyway."""

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
        """How often it was delivered, this time included."""
        return self.message.metadata.num_delivered

    @property
    def traceparent(self) -> str:
        return (self.message.headers or {}).get("traceparent", "")

    @property
    def run_id(self) -> str:
        """Second part of the subject."""
        parts = self.subject.split(".")
        return parts[1] if len(parts) > 1 else ""

    def decode(self, cls: type[M]) -> M:
        """The payload as a message. Raises InvalidInput where the bytes are not one."""
        try:
            message = cls()
            message.ParseFromString(self.data)
            return message
        except DecodeError:
            size = len(self.data)
            raise InvalidInput(
                f"{size} bytes on {self.subject} are not a {cls.DESCRIPTOR.full_name}"
            ) from None

    async def ack(self) -> None:
        await self._say(self.message.ack())

    async def nak(self, delay_s: float) -> None:
        """Deliver it again after `delay_s` seconds."""
        await self._say(self.message.nak(delay=delay_s))

    async def in_progress(self) -> None:
        await self._say(self.message.in_progress())

    async def term(self) -> None:
        """Never deliver it again."""
        await self._say(self.message.term())

    @staticmethod
    async def _say(word: object) -> None:
        try:
            await word  # type: ignore[misc]
        except NatsError:
            # The connection is down: the broker will deliver the message again.
            return
