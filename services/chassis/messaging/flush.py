"""Waits until the broker has what was written, without ever giving the client's own wait up.

nats-py 2.16 ends a connection's reading, with a traceback and for minutes, when the answer comes to a ping that nobody waits
for any more: whose flush was cancelled, or timed out.
"""

import asyncio

from nats.aio.client import Client

_ANSWER_S = 300.0  # the client gives a connection up sooner


async def flushed(client: Client, timeout_s: float) -> None:
    """Returns once the broker has all that was written. Raises TimeoutError, or what the connection raises."""
    asked = asyncio.ensure_future(client.flush(_ANSWER_S))  # type: ignore[arg-type]  # seconds, of any kind
    asked.add_done_callback(_seen)
    async with asyncio.timeout(timeout_s):
        await asyncio.shield(asked)


def _seen(asked: "asyncio.Future[None]") -> None:
    """Nobody needs to be told that nobody looked."""
    if not asked.cancelled():
        asked.exception()
