"""A pull request that stays open at the broker."""

import asyncio
import contextlib
import json
import time
from typing import Any

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import StatusCode
from nats.js.errors import APIError

RENEWED_S = 1.0  # a broker that restarted has forgotten pull requests, so they are renewed
# A process that was suspended beyond its deadline still makes one request; the library refuses a
# wait of zero.
SHORTEST_S = 0.05
_GRACE_S = 0.25  # for the broker's word that a request is over
_CONFLICT_S = 0.25  # before the next request after one that the broker refused


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
            left_s = min(left_s, self._until - time.monotonic(), RENEWED_S)
            with contextlib.suppress(TimeoutError, nats.errors.TimeoutError):
                message = await self._subscription._sub.next_msg(timeout=max(SHORTEST_S, left_s))
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
