"""The response of a live stream."""

import asyncio
import contextlib
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from services.gateway.page.http.streams import Hub, Reading, Source


class EventStream(Response):
    """Response that sends a source's events until one of both sides ends it."""

    def __init__(
        self, hub: Hub, key: tuple[str, ...], make: Callable[[], Source], last: str
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
        del self.headers["content-length"]
        hub.free()
        self._hub, self._key, self._make, self._last = hub, key, make, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source is over, or the reader leaves or is cut."""
        if scope["method"] == "HEAD":
            return await super().__call__(scope, receive, send)
        with self._hub.reading(self._key, self._make) as reading:
            sending = asyncio.ensure_future(self._send(reading, send))
            leaving = asyncio.ensure_future(_left(receive))
            try:
                await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, reading: Reading, send: Send) -> None:
        async with contextlib.aclosing(reading.events(self._last)) as events:
            started = False
            async for event in events:
                if not started:  # not before the first read: it may say that there is no such thing
                    await send(self._start())
                    started = True
                body = b": alive\n\n" if event is None else event.encoded()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        if not started:
            await send(self._start())
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _start(self) -> Message:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
