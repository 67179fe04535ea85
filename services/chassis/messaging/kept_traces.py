"""Word between processes of traces that failed or were slow, so that all send their spans.

It is plain NATS and not the log: who misses a message sends fewer spans, and nothing else.
"""

import asyncio
import contextlib
import logging

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from services.chassis.process.telemetry.providers import active

log = logging.getLogger(__name__)
SUBJECT = "banyan.traces.kept"
_ID_BYTES = 16


async def share(client: Client) -> None:
    """Hear of traces to keep, and tell of them. Nothing where all traces are sent, or none.

    A joined node, which may not speak on this subject, keeps what failed in itself.
    """
    kept = active.kept
    if kept is None or kept.keeps_all:
        return
    loop = asyncio.get_running_loop()
    telling: set[asyncio.Task[None]] = set()

    async def hear(message: Msg) -> None:
        if len(message.data) == _ID_BYTES:
            kept.keep(int.from_bytes(message.data))

    async def publish(trace_id: int) -> None:
        try:
            await client.publish(SUBJECT, trace_id.to_bytes(_ID_BYTES))
        except nats.errors.Error as error:
            log.debug("cannot tell of a trace: %s", error)

    def begin(trace_id: int) -> None:
        task = loop.create_task(publish(trace_id))
        telling.add(task)
        task.add_done_callback(telling.discard)

    def tell(trace_id: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(begin, trace_id)

    await client.subscribe(SUBJECT, cb=hear)
    kept.tell = tell
