"""Triggers: messages that wake a reader, without a durable consumer. A lost one costs a delay."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from services.chassis.messaging.delivery import Delivery
from services.chassis.messaging.flush import flushed
from services.chassis.messaging.open_request import OpenRequest

log = logging.getLogger(__name__)

_LISTEN_IDLE_S = 5.0
_SUBSCRIBE_IDLE_S = 1.0
_FLUSH_S = 2
_RETRY_S = 0.2
_BATCH = 64


async def listen(
    client: Client, js: JetStreamContext, stream: str, filters: Sequence[str]
) -> AsyncIterator[Delivery]:
    """Yield the last message of each subject, then new ones.

    The consumer is ephemeral, and is created again after any fault or reconnect.
    """
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
        ack_policy=AckPolicy.NONE,
        filter_subjects=list(filters) if len(filters) > 1 else None,
        filter_subject=filters[0] if len(filters) == 1 else None,
        inactive_threshold=60.0,
        mem_storage=True,
    )
    while not client.is_closed:
        try:
            # With a name of ours, stream and filter are in the request's subject, where the
            # broker's permissions apply to them.
            config.name = f"listen-{secrets.token_hex(8)}"
            name = (await js.add_consumer(stream, config)).name
            subscription = await js.pull_subscribe_bind(consumer=name, stream=stream)
            try:
                async for delivery in _pull(client, subscription):
                    yield delivery
            finally:
                with contextlib.suppress(nats.errors.Error):
                    await subscription.unsubscribe()
        except (TimeoutError, nats.errors.Error, JetStreamError, OSError) as error:
            log.debug("listening on %s: %s; again", stream, error)
            await asyncio.sleep(_RETRY_S)


async def _pull(client: Client, subscription: Any) -> AsyncIterator[Delivery]:
    """Yield the messages of a subscription until the client reconnects or closes."""
    connects = client.stats["reconnects"]
    request = OpenRequest(subscription, _BATCH, _LISTEN_IDLE_S)
    while client.stats["reconnects"] == connects and not client.is_closed:
        try:
            for message in await request.take(_BATCH, _LISTEN_IDLE_S):
                yield Delivery(message)
        except (TimeoutError, nats.errors.TimeoutError):
            continue


async def subscribe(client: Client, subject: str) -> AsyncIterator[None]:
    """Yield once subscribed, then at each message and after each reconnect.

    The broker stores nothing for it, and the client needs no right except to subscribe. Messages
    that arrive before the reader is back are one trigger.
    """
    arrived = asyncio.Event()

    async def note(_: object) -> None:
        arrived.set()

    subscription = await client.subscribe(subject, cb=note)
    # Without an answer the subscription holds from the next connection on.
    with contextlib.suppress(nats.errors.Error, TimeoutError):
        await flushed(client, _FLUSH_S)
    connects = -1
    try:
        while not client.is_closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SUBSCRIBE_IDLE_S if connects >= 0 else 0.0):
                    await arrived.wait()
            if arrived.is_set() or client.stats["reconnects"] != connects:
                connects = client.stats["reconnects"]
                arrived.clear()
                yield None
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()
