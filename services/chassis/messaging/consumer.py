"""Durable pull consumers that survive reconnects and brokers that have lost their files."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError
from nats.js.errors import Error as JetStreamError

from banyan.errors import DeadlineMissed
from services.chassis.messaging.delivery import Delivery
from services.chassis.messaging.flush import flushed
from services.chassis.messaging.open_request import RENEWED_S, SHORTEST_S, OpenRequest

log = logging.getLogger(__name__)

_CLOSE_S = 3.0  # for returning the messages that arrived
_ANSWER_S = 1.0  # the broker answers at once, unless it is away just now
_LASTS_S = 5.0  # of a request that stays open; a reconnect is looked for more often
# Errors of a broker that may have lost a stream or a consumer.
_LOST = (
    nats.errors.NoRespondersError,
    NoStreamResponseError,
    APIError,
    ServiceUnavailableError,
)


async def ready(subscription: Any, batch: int, timeout_s: float) -> list[Msg]:
    """Return the first message as soon as it is there, with up to `batch` that are there by then.

    Raise TimeoutError without any. The library's own fetch of many sometimes waits for more: in
    runs, every tenth came 0.2 s late (ADR 013).
    """
    messages: list[Msg] = await subscription.fetch(1, timeout=timeout_s)
    if batch > 1:
        request = json.dumps({"batch": batch - 1, "no_wait": True}).encode()
        await subscription._nc.publish(subscription._nms, request, subscription._deliver)
        with contextlib.suppress(TimeoutError, nats.errors.TimeoutError):
            while len(messages) < batch:
                message = await subscription._sub.next_msg(timeout=_ANSWER_S)
                if JetStreamContext.is_status_msg(
                    message
                ):  # no more; the next fetch reports errors
                    break
                messages.append(message)
    return messages


class Consumer:
    """A durable pull consumer.

    `fetch` survives reconnects, and a broker that has lost its files if `config` is given.

    standing: messages of a request that stays open behind a fetch; 0 if each fetch makes its own,
        for readers that may not hold what they did not ask for
    rest_s: rest after a message that was waited for, so that others join it
    """

    def __init__(
        self,
        ensure_streams: Callable[[], Awaitable[None]],
        js: JetStreamContext,
        stream: str,
        durable: str,
        config: ConsumerConfig | None,
        *,
        standing: int = 0,
        rest_s: float = 0.0,
    ) -> None:
        self._ensure_streams, self._js, self._stream = ensure_streams, js, stream
        self._durable, self._config = durable, config
        self._standing, self._rest_s = standing, rest_s
        self._subscription: Any = None
        self._request: OpenRequest | None = None

    async def ensure(self) -> None:
        """Create the consumer, unless it exists with these settings."""
        if self._config is not None:
            await self._js.add_consumer(self._stream, self._config)

    async def fetch(self, batch: int, timeout_s: float) -> list[Delivery]:
        """Return up to `batch` messages; none after `timeout_s`."""
        task = asyncio.current_task()
        cancels = 0 if task is None else task.cancelling()
        messages = await self._fetch(batch, timeout_s)
        if task is not None and task.cancelling() > cancels:
            # Before Python 3.12 `wait_for`, which the client uses, may return a result and forget
            # that it was cancelled; whoever cancels a loop would wait for its end for ever.
            self._keep(messages)
            raise asyncio.CancelledError
        return [Delivery(message) for message in messages]

    def _keep(self, messages: Sequence[Msg]) -> None:
        """Put messages back among those that arrived, which `close` returns."""
        if self._subscription is not None:
            for message in messages:
                self._subscription._sub._pending_queue.put_nowait(message)

    async def _fetch(self, batch: int, timeout_s: float) -> list[Msg]:
        deadline = time.monotonic() + timeout_s
        try:
            if self._subscription is None:
                self._subscription = await self._js.pull_subscribe_bind(
                    consumer=self._durable, stream=self._stream
                )
                if self._standing:
                    self._request = OpenRequest(self._subscription, self._standing, _LASTS_S)
            if self._request is not None:
                left_s = max(SHORTEST_S, deadline - time.monotonic())
                return await self._request.take(batch, left_s, self._rest_s)
            return await self._ready(batch, deadline)
        except (TimeoutError, nats.errors.TimeoutError):
            return []
        except (nats.errors.Error, JetStreamError, OSError) as error:
            log.debug("fetching from %s/%s: %s", self._stream, self._durable, error)
            await self._recover(error)
            await asyncio.sleep(min(0.25, max(0.0, deadline - time.monotonic())))
            return []

    async def _ready(self, batch: int, deadline: float) -> list[Msg]:
        """Call `ready` until the deadline."""
        while (left_s := deadline - time.monotonic()) > RENEWED_S:
            with contextlib.suppress(TimeoutError, nats.errors.TimeoutError):
                return await ready(self._subscription, batch, RENEWED_S)
        return await ready(self._subscription, batch, max(SHORTEST_S, left_s))

    async def close(self) -> None:
        """Request no more, and return at once the messages that arrived and were not fetched."""
        subscription, self._subscription, self._request = self._subscription, None, None
        if subscription is None:
            return
        pending, connection = subscription._sub._pending_queue, subscription._nc
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            # The last request may still be open at the broker, and would be answered with the
            # messages that are returned below.
            async with asyncio.timeout(_ANSWER_S):
                await connection._send_unsubscribe(subscription._sub._id)
            await flushed(connection, _ANSWER_S)  # messages sent before that are here now
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await subscription.unsubscribe()
        # A broker that takes nothing delivers the rest again by itself.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while not pending.empty():
                    message = pending.get_nowait()
                    if message.reply.startswith("$JS.ACK."):  # others are statuses of the request
                        await Delivery(message).nak(0.0)

    async def _recover(self, error: Exception) -> None:
        """Create streams and consumer again if the broker may have lost them."""
        if self._config and isinstance(error, _LOST):
            with contextlib.suppress(
                nats.errors.Error, JetStreamError, asyncio.TimeoutError, OSError, DeadlineMissed
            ):
                await self._ensure_streams()
                await self.ensure()
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = self._request = None
