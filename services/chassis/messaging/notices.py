"""Words on NATS that no stream keeps: said once, heard by who listens just then. Whoever needs an effect says it again."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TypeVar

import nats.errors
from google.protobuf.message import DecodeError, Message
from nats.aio.client import Client

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
_HELD = 64  # more that come while one is dealt with are dropped


async def publish(client: Client, subject: str, message: Message) -> None:
    """Says it, if NATS is there."""
    with contextlib.suppress(nats.errors.Error):
        await client.publish(subject, message.SerializeToString())


async def subscribe(client: Client, subject: str, kind: type[M]) -> AsyncIterator[M]:
    """What is said from now on, for ever. What cannot be read is dropped."""
    subscription = await client.subscribe(subject, pending_msgs_limit=_HELD)
    try:
        async for delivery in subscription.messages:
            try:
                message = kind.FromString(delivery.data)
            except DecodeError:
                log.debug(
                    "%d bytes on %s are no %s",
                    len(delivery.data),
                    subject,
                    kind.DESCRIPTOR.full_name,
                )
                continue
            yield message
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()
