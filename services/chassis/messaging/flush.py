"""Flush a NATS connection without ever cancelling the client's own wait.

nats-py 2.16 stops reading a connection, for minutes and with a traceback, when a ping is answered
whose flush was cancelled or timed out.
"""

import asyncio

from nats.aio.client import Client

_ANSWER_S = 300.0  # the client closes a silent connection sooner


async def flushed(client: Client, timeout_s: float) -> None:
    """Return once the broker has all that was written.

    Raise TimeoutError, or the connection's error.
    """
    # The client's annotation says int, but it takes seconds of any kind.
    flushing = asyncio.ensure_future(client.flush(_ANSWER_S))  # type: ignore[arg-type]
    flushing.add_done_callback(_retrieve)
    async with asyncio.timeout(timeout_s):
        await asyncio.shield(flushing)


def _retrieve(flushing: "asyncio.Future[None]") -> None:
    """Retrieve the exception so that asyncio does not log "never retrieved"."""
    if not flushing.cancelled():
        flushing.exception()
