"""The response of a live stream."""

import asyncio
import contextlib
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.page.http.errors import HttpError
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
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source is over, or the reader leaves or is cut."""
        if scope["method"] == "HEAD":
            return await super().__call__(scope, receive, send)
        with self._hub.reading(self._key, self._make) as reading:
            sending = asyncio.ensure_future(self._send(reading, send))
            leaving = asyncio.ensure_future(_left(receive))
            try:
                await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            finally:
                done = [task for task in (sending, leaving) if task.done()]
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)
        for task in done:
            await self._end(task, send)

    async def _end(self, task: "asyncio.Future[None]", send: Send) -> None:
        """Raise what ended the stream, unless it is too late for another answer."""
        try:
            task.result()
        except HttpError:  # such as a body that is too large
            if not self._started:
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, reading: Reading, send: Send) -> None:
        async with contextlib.aclosing(reading.events(self._last)) as events:
            async for event in events:
                if not self._started:  # not before the first read: there may be no such thing
                    await self._start(send)
                body = b": alive\n\n" if event is None else event.encoded()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        if not self._started:
            await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        self._started = True
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
