"""One HTTP/1.1 request over asyncio's streams. Its caller sets the deadline, which holds in sum."""

import asyncio
import functools
import http.client
import io
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_MOST_BYTES = 4 << 20  # of a body
_MOST_HEAD = 64 << 10


class BadReply(Exception):
    """Something came back that is no reply of HTTP, or a larger one than is read."""


@dataclass(frozen=True, slots=True)
class Response:
    """A reply.

    status: its number
    headers: by name in lower case; the last of equal ones
    body: its content
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


async def post(url: str, body: bytes, headers: Mapping[str, str]) -> Response:
    """Send a body and return the reply. Raise OSError if there is no way, BadReply for nonsense.

    Redirects and proxies are not followed: a key goes to the address that it is meant for.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(
        parts.hostname, port, ssl=_trusted() if secure else None, limit=_MOST_HEAD
    )
    try:
        writer.write(_head(parts.path or "/", parts.netloc, len(body), headers) + body)
        await writer.drain()
        return await _response(reader)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise BadReply(f"{type(error).__name__} within its reply") from None
    finally:
        writer.transport.abort()  # a goodbye could take as long as the other side likes


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return the machine's authorities (or those of SSL_CERT_FILE), read once: it takes a while."""
    return ssl.create_default_context()


def _head(path: str, host: str, size: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {size}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "Connection: close", "", "")).encode("latin-1")


async def _response(reader: asyncio.StreamReader) -> Response:
    head = await reader.readuntil(b"\r\n\r\n")
    first, _, rest = head.partition(b"\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise BadReply("its reply is not HTTP/1.1")
    try:
        parsed = http.client.parse_headers(io.BytesIO(rest))
    except http.client.HTTPException:
        raise BadReply("its reply has headers that cannot be read") from None
    headers = {name.lower(): value for name, value in parsed.items()}
    return Response(int(words[1]), headers, await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    if "content-length" in headers:
        return await reader.readexactly(_checked(int(headers["content-length"])))
    body = b""
    while part := await reader.read(_MOST_HEAD):
        body += part
        _checked(len(body))
    return body


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := _checked(int((await reader.readline()).partition(b";")[0], 16)):
        _checked(len(body) + size)
        body += (await reader.readexactly(size + 2))[:-2]
    return body


def _checked(size: int) -> int:
    if not 0 <= size <= _MOST_BYTES:
        raise BadReply(f"its reply has {size} bytes; at most {_MOST_BYTES} are read")
    return size
