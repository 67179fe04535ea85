"""A cancelled flush leaves the connection as it was."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from nats.aio.client import Client

from services.chassis.messaging.bus import Bus
from services.chassis.messaging.flush import flushed


async def _hears_after(server, giving_up: Callable[[Client], Awaitable[None]]) -> bool:
    """Return True if a client still receives messages after cancelled flushes."""
    bus = await Bus.connect(server.url, "test")
    heard = await bus.client.subscribe("x")
    for turns in range(8):
        waiting = asyncio.ensure_future(giving_up(bus.client))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
    try:
        await bus.client.publish("x", b"1")
        await heard.next_msg(timeout=2.0)
    except TimeoutError:
        return False
    finally:
        await bus.close()
    return True


async def test_a_wait_that_is_given_up_does_not_end_the_hearing(
    nats_server, caplog: pytest.LogCaptureFixture
) -> None:
    assert await _hears_after(nats_server, lambda client: flushed(client, 5.0))
    assert not caplog.records
    assert not await _hears_after(nats_server, lambda client: client.flush(5)), (
        "nats-py mended it: flushed() may go"
    )


async def test_a_wait_has_a_deadline(nats_server) -> None:
    bus = await Bus.connect(nats_server.url, "test")
    with pytest.raises(TimeoutError):
        await flushed(bus.client, 0.0)
    await flushed(bus.client, 5.0)
    await bus.close()
