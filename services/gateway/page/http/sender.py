"""Sending a response: the headers that all have, and a deadline for each write."""

import asyncio

from starlette.types import Message, Send

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
WRITE_S = 10.0  # a reader that takes nothing for so long is cut
_PIECE = 64 << 10  # bytes of a body that are written at once, so that each has the deadline


class Cut(Exception):
    """A reader that takes nothing."""


class Sender:
    """Sending with headers of our own and a deadline for each write."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [*message.get("headers", []), *HEADERS]
        body = memoryview(message.get("body", b""))
        last = max(0, len(body) - 1) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            piece = bytes(body[start : start + _PIECE])
            await self._write({**message, "body": piece, "more_body": True})
        await self._write({**message, "body": bytes(body[last:])} if body else message)

    async def _write(self, message: Message) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._send(message)
        except TimeoutError:
            self.abort()
            raise Cut from None

    def abort(self) -> None:
        """Drop the connection with what is not yet sent: closing it would wait for the reader."""
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
