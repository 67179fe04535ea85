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
from nats.js.api import ConsumerConfig, StatusCode
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError
from nats.js.errors import Error as JetStreamError

from banyan.errors import DeadlineMissed
from services.chassis.messaging.delivery import Delivery
from services.chassis.messaging.flush import flushed

log = logging.getLogger(__name__)

_CLOSE_S = 3.0  # for returning the messages that arrived
_ANSWER_S = 1.0  # the broker answers at once, unless it is away just now
_REQUEST_S = 1.0  # a broker that restarted has forgotten pull requests, so they are renewed
# A process that was suspended beyond its deadline still makes one request; the library refuses a
# wait of zero.
_SHORTEST_S = 0.05
_LASTS_S = 5.0  # of a request that stays open; a reconnect is looked for more often
_GRACE_S = 0.25  # for the broker's word that a request is over
_CONFLICT_S = 0.25  # before the next request after one that the broker refused
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


class OpenRequest:
    """A pull request that stays open behind a fetch, so that later messages come unasked.

    The broker ends it after `lasts_s`, and forgets it when it restarts; then it is made again.

    batch: messages that it asks for, and so the most that arrive before they are taken
    """

    def __init__(self, subscription: Any, batch: int, lasts_s: float) -> None:
        self._subscription, self._batch, self._lasts_s = subscription, batch, lasts_s
        self._left = 0  # messages that the broker still owes
        self._until = 0.0
        self._connects = -1

    async def take(self, batch: int, timeout_s: float, rest_s: float = 0.0) -> list[Msg]:
        """Return the messages that are there, at most `batch`; without any, wait for the first.

        Raise TimeoutError without any, and the error of a broker that knows no such consumer.

        rest_s: rest after a first message that was waited for, so that others join it
        """
        deadline = time.monotonic() + timeout_s
        while not (messages := self._arrived(batch)):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            await self._request_if_over()
            left_s = min(left_s, self._until - time.monotonic(), _REQUEST_S)
            with contextlib.suppress(TimeoutError, nats.errors.TimeoutError):
                message = await self._subscription._sub.next_msg(timeout=max(_SHORTEST_S, left_s))
                if self._is_content(message):
                    await self._rest(message, rest_s)
                    return [message, *self._arrived(batch - 1)]
        return messages

    async def _request_if_over(self) -> None:
        connection, now = self._subscription._nc, time.monotonic()
        connects = connection.stats["reconnects"]
        if self._left > 0 and now < self._until and connects == self._connects:
            return
        self._left, self._connects = self._batch, connects
        self._until = now + self._lasts_s + _GRACE_S
        request = {"batch": self._batch, "expires": round(self._lasts_s * 1e9)}
        await connection.publish(
            self._subscription._nms, json.dumps(request).encode(), self._subscription._deliver
        )

    async def _rest(self, message: Msg, rest_s: float) -> None:
        """Wait a moment, but keep the message among those that arrived if that is cancelled."""
        if not rest_s or self._left <= 0:
            return
        try:
            await asyncio.sleep(rest_s)
        except asyncio.CancelledError:
            self._subscription._sub._pending_queue.put_nowait(message)
            raise

    def _arrived(self, batch: int) -> list[Msg]:
        """Return messages that arrived, without a wait."""
        messages: list[Msg] = []
        inner = self._subscription._sub
        while len(messages) < batch and not inner._pending_queue.empty():
            message = inner._pending_queue.get_nowait()
            inner._pending_size -= len(message.data)  # which the client bounds
            inner._pending_queue.task_done()
            if self._is_content(message, is_first=not messages):
                messages.append(message)
        return messages

    def _is_content(self, message: Msg, is_first: bool = True) -> bool:
        """Return False for a status, which ends the request. Raise the error that it may be.

        An error behind messages that are returned comes again with the next request.
        """
        status = JetStreamContext.is_status_msg(message)
        if not status:
            self._left -= 1
            return True
        if status == StatusCode.CONFLICT:  # not at once: the broker would say the same
            self._until = min(self._until, time.monotonic() + _CONFLICT_S)
            return False
        self._left = 0
        if is_first and not JetStreamContext._is_temporary_error(status):
            raise APIError.from_msg(message)
        return False


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
                left_s = max(_SHORTEST_S, deadline - time.monotonic())
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
        while (left_s := deadline - time.monotonic()) > _REQUEST_S:
            with contextlib.suppress(TimeoutError, nats.errors.TimeoutError):
                return await ready(self._subscription, batch, _REQUEST_S)
        return await ready(self._subscription, batch, max(_SHORTEST_S, left_s))

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
