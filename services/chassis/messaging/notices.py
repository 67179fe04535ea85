"""Publish and subscribe without persistence: delivery is best effort, senders must retry."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TypeVar

import nats.errors
from google.protobuf.message import DecodeError, Message
from nats.aio.client import Client

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
_MAX_PENDING = 64  # messages that wait while one is processed; more are dropped


async def publish(client: Client, subject: str, message: Message) -> None:
    """Publish a message if NATS can be reached."""
    with contextlib.suppress(nats.errors.Error):
        await client.publish(subject, message.SerializeToString())


async def subscribe(client: Client, subject: str, kind: type[M]) -> AsyncIterator[M]:
    """Yield messages until cancelled. Drop those that cannot be decoded."""
    subscription = await client.subscribe(subject, pending_msgs_limit=_MAX_PENDING)
    try:
        async for delivery in subscription.messages:
            try:
                message = kind.FromString(delivery.data)
            except DecodeError:
                name = kind.DESCRIPTOR.full_name
                log.debug("%d bytes on %s are no %s", len(delivery.data), subject, name)
                continue
            yield message
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()
