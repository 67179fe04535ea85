"""Connections that do harm: too many, slow, endless, and readers that do not read."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.gateway.page.host import serving
from services.gateway.page.http import access, connection, sender
from services.gateway.page.http.access import Access, Guard
from services.gateway.page.http.streams import Hub
from tests.gateway.page.conftest import on_a_port

LARGE = 32 << 20  # bytes, more than the kernel holds for a reader


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[tuple[str, list[str]]]:
    """Serve a page whose only answer is large; yield its address and the requests that ended."""
    ended: list[str] = []

    async def large(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * LARGE})
        finally:
            ended.append(scope["path"])

    async with serving(Guard(large, Access(secret="")), Hub(), "127.0.0.1:0") as address:
        yield address, ended


def opened(address: str, data: bytes = b"") -> socket.socket:
    host, _, port = address.partition(":")
    made = socket.create_connection((host, int(port)), timeout=10)
    made.sendall(data)
    made.setblocking(False)
    return made


def ended(made: socket.socket) -> bool:
    """Return whether the other side has ended a connection, without waiting."""
    try:
        return not made.recv(1 << 16)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def test_connections_beyond_the_limit_are_dropped_and_others_served_again(
    here: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(connection, "MORE", 2)
    monkeypatch.setattr(connection, "REQUEST_S", 1.0)
    monkeypatch.setattr(connection.Connection, "_logged", float("-inf"))
    async with on_a_port(here.page) as address:
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(opened(address)) for _ in range(20)]
            await eventually(lambda: sum(map(ended, idle)) >= 14, what="the surplus is dropped")
            assert caplog.text.count("connections to the page are open") == 1
            await eventually(lambda: all(map(ended, idle)), what="the idle ones are dropped")
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/api/runs")).status_code == 200


async def test_a_request_that_does_not_end_is_dropped_and_a_stream_is_not(
    here: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", 0.3)
    run = here.store.forge.run_id
    head = f"GET /api/runs/{run}/events HTTP/1.1\r\nHost: "
    async with on_a_port(here.page) as address:
        stream = opened(address, f"{head}{address}\r\n\r\n".encode())
        slow = opened(address, head.encode())
        again = opened(address, f"GET /x.y HTTP/1.1\r\nHost: {address}\r\n\r\n{head}".encode())
        with stream, slow, again:
            await eventually(lambda: here.page.hub.streams == 1)
            for late in (slow, again):
                await eventually(lambda late=late: ended(late), what="the slow request is dropped")
            await asyncio.sleep(0.5)  # beyond the deadline of a request
            assert here.page.hub.streams == 1, "a stream has no such deadline"


async def test_a_large_answer_that_nobody_takes_is_cut(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(sender, "WRITE_S", 0.3)
    async with answering() as (address, over):
        unread = opened(address, f"GET /a HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        with unread:
            await eventually(lambda: over == ["/a"], what="the writer gave up")
        monkeypatch.setattr(sender, "WRITE_S", 30.0)
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert len((await client.get("/b")).content) == LARGE


@pytest.mark.parametrize("close", ["", "Connection: close\r\n"])
async def test_the_end_of_an_answer_that_nobody_takes_is_dropped(
    monkeypatch: pytest.MonkeyPatch, eventually: Any, close: str
) -> None:
    """Closing waits for the reader, who may never read."""
    monkeypatch.setattr(connection, "REQUEST_S", 0.3)
    made: list[Any] = []
    before = connection.Connection.connection_made

    def noted(self: Any, transport: Any) -> None:
        made.append(transport)
        before(self, transport)

    monkeypatch.setattr(connection.Connection, "connection_made", noted)
    monkeypatch.setattr(sender, "_PIECE", LARGE)
    async with answering() as (address, over):
        head = f"GET /a HTTP/1.1\r\nHost: {address}\r\n{close}\r\n"
        with opened(address, head.encode()):
            await eventually(lambda: over == ["/a"])
            await eventually(
                lambda: made[0].get_write_buffer_size() == 0, what="nothing is kept for the reader"
            )


async def test_an_endless_body_ends_a_stream(
    here: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = here.store.forge.run_id

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(access.MOST_BODY):
            yield b" " * 2

    async with (
        on_a_port(here.page) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        async with asyncio.timeout(10):
            answer = await client.request("GET", f"/api/runs/{run}/events", content=pieces())
        assert answer.status_code in (200, 413), "it may have begun before the body was too large"
        await eventually(lambda: here.page.hub.streams == 0)
    assert "Traceback" not in caplog.text and "ASGI" not in caplog.text


async def test_headers_that_arrive_at_once_have_the_same_limit(here: Any) -> None:
    async with (
        on_a_port(here.page) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        headers = {f"x-{n}": "y" * 1000 for n in range(20)}
        answer = await client.get("/api/runs", headers=headers)
        assert answer.status_code in (400, 431), answer.text
    answer = await here.client.get("/api/runs", headers=headers)
    assert answer.status_code == 431 and "16384 bytes" in answer.json()["error"]["message"]


def test_few_descriptors_allow_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((256, 64), (1024, 256), (10**6, 256), (resource.RLIM_INFINITY, 256)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert connection.most_connections() == most
