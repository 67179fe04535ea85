"""The log as services use it: acknowledged publishing, durable consumers, triggers.

See docs/protocol.md, Consumers and connections.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import nats
import nats.errors
from google.protobuf.message import Message
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from banyan.errors import DeadlineMissed, InvalidInput
from services.chassis.messaging import dead_letters, kept_traces, streams, subjects, triggers
from services.chassis.messaging.chunks import BROKER_BYTES, HEADER_BYTES
from services.chassis.messaging.chunks import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from services.chassis.messaging.consumer import Consumer
from services.chassis.messaging.delivery import Delivery
from services.chassis.messaging.flush import flushed
from services.chassis.process.settings import Settings

log = logging.getLogger(__name__)

SCHEMA = "banyan.v1"
_TRY_S = 5.0
# Of one attempt to publish. A broker that died before it acknowledged never will, and an id that is
# published again is stored once.
_ACK_S = 2.0
_LISTED = 256  # consumers in one answer of the broker, unless it is the last


def _is_informative(record: logging.LogRecord) -> bool:
    """Return False for the line that asyncio logs at the end of each TLS connection."""
    return not record.getMessage().startswith("returning true from eof_received()")


class Bus:
    """A connection to NATS. It reconnects without limit, and publishes until acknowledged."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._js: JetStreamContext = client.jetstream(timeout=_TRY_S)

    @classmethod
    async def of(cls, settings: Settings, name: str, inbox_prefix: str = "") -> "Bus":
        """Connect as the settings of a service say. Raise DeadlineMissed."""
        bus = await cls.connect(
            settings.nats,
            name,
            creds=settings.nats_creds,
            inbox_prefix=inbox_prefix,
            tls_root=settings.nats_tls_root,
            tls_name=settings.nats_tls_name,
        )
        await kept_traces.share(bus.client)
        return bus

    @classmethod
    async def connect(
        cls,
        url: str,
        name: str,
        *,
        creds: str = "",
        inbox_prefix: str = "",
        tls_root: str = "",
        tls_name: str = "",
        patience_s: float = 30.0,
    ) -> "Bus":
        """Connect, waiting for the server for at most `patience_s`. Raise DeadlineMissed.

        tls_root: PEM file; with it the connection is TLS and trusts that certificate alone, under
        the name `tls_name`.
        """
        options: dict[str, Any] = {
            "name": name,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.25,
            "connect_timeout": 5,
        }
        if creds:
            options["user_credentials"] = creds
        if inbox_prefix:
            options["inbox_prefix"] = inbox_prefix.encode()
        if tls_root:
            options["tls"] = ssl.create_default_context(cafile=tls_root)
            options["tls_hostname"] = tls_name
            # Otherwise the client would speak in plain text to a server that asks for no TLS.
            options["tls_handshake_first"] = True
            logging.getLogger("asyncio").addFilter(_is_informative)
        client = Client()
        # The client retries without limit, at the first connection too: the deadline is ours.
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(client.close)
            try:
                async with asyncio.timeout(patience_s):
                    await client.connect(url, error_cb=_log_error, allow_reconnect=True, **options)
            except (TimeoutError, OSError, nats.errors.Error) as error:
                cause = client.last_error or error
                raise DeadlineMissed(
                    f"no NATS server answers at {url} after {patience_s:.0f} s: {cause};"
                    " is it running?"
                ) from None
            undo.pop_all()
        return cls(client)

    async def close(self) -> None:
        """Send what is buffered and close, within two seconds."""
        with contextlib.suppress(nats.errors.Error, OSError):  # TimeoutError is an OSError
            await flushed(self._client, 1.0)
        with contextlib.suppress(nats.errors.Error, OSError):
            async with asyncio.timeout(1.0):
                await self._client.close()

    @property
    def client(self) -> Client:
        """The connection itself, for object stores and notices, which are no streams of the log."""
        return self._client

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    async def ensure_streams(self) -> None:
        """Create the streams that are missing. Raise InvalidInput where no retry will help."""
        for config in subjects.STREAMS:
            await self._retry(
                lambda c=config: streams.make(self._js, c), f"creating stream {config.name}", 30.0
            )

    async def publish(
        self,
        subject: str,
        message: Message,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        """Publish until acknowledged; return the sequence. Raise DeadlineMissed, or InvalidInput.

        After a timeout the message may be stored or not, so it is sent again under the same id.
        """
        data = message.SerializeToString()
        if len(data) > BROKER_BYTES - HEADER_BYTES:
            raise InvalidInput(
                f"a message of {len(data)} bytes for {subject} is over the broker's limit; split it"
            )
        return await self.publish_bytes(
            subject, data, msg_id, traceparent=traceparent, deadline_s=deadline_s
        )

    async def publish_bytes(
        self,
        subject: str,
        data: bytes,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        """Publish bytes that were encoded before, as `publish` does."""
        headers = {"Nats-Msg-Id": msg_id, "Banyan-Schema": SCHEMA}
        if traceparent:
            headers["traceparent"] = traceparent
        ack = await self._retry(
            lambda: self._js.publish(subject, data, timeout=_ACK_S, headers=headers),
            f"publishing on {subject}",
            deadline_s,
        )
        return int(ack.seq)

    async def _retry(self, attempt: Any, action: str, deadline_s: float) -> Any:
        deadline = time.monotonic() + deadline_s
        delay_s = 0.05
        while True:
            try:
                # The client's own timeout begins once the message is written. While more waits to
                # be written than it may hold, an attempt waits too: a second copy would not help.
                async with asyncio.timeout(deadline + _ACK_S - time.monotonic()):
                    return await attempt()
            except (TimeoutError, nats.errors.Error, JetStreamError, OSError) as error:
                if isinstance(error, nats.errors.MaxPayloadError) or _forbidden(error):
                    raise InvalidInput(f"{action}: the broker refuses it: {error}") from None
                if time.monotonic() + delay_s > deadline:
                    cause = f"{type(error).__name__}: {error}"
                    raise DeadlineMissed(
                        f"{action}: no ack from NATS in {deadline_s:.0f} s ({cause})"
                    ) from None
                log.debug("%s: %s; trying again", action, error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, 1.0)

    async def consumer(
        self,
        stream: str,
        durable: str,
        filters: Sequence[str],
        *,
        ack_wait_s: float = 30.0,
        max_ack_pending: int = 1000,
        standing: int = 0,
        rest_s: float = 0.0,
    ) -> Consumer:
        """Return a durable pull consumer with explicit acks, created if it is missing.

        standing, rest_s: see `Consumer`
        """
        config = ConsumerConfig(
            durable_name=durable,
            filter_subjects=list(filters) if len(filters) > 1 else None,
            filter_subject=filters[0] if len(filters) == 1 else None,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_wait_s,
            max_deliver=-1,
            max_ack_pending=max_ack_pending,
            deliver_policy=DeliverPolicy.ALL,
        )
        consumer = Consumer(
            self.ensure_streams,
            self._js,
            stream,
            durable,
            config,
            standing=standing,
            rest_s=rest_s,
        )
        await self._retry(consumer.ensure, f"creating consumer {durable} on {stream}", 30.0)
        return consumer

    async def bind(self, stream: str, durable: str) -> Consumer:
        """Return a durable pull consumer that exists, for clients that may not create any."""
        return Consumer(self.ensure_streams, self._js, stream, durable, None)

    async def delete_consumer(self, stream: str, durable: str) -> None:
        """Delete a durable consumer if it exists."""
        with contextlib.suppress(JetStreamError, nats.errors.Error, asyncio.TimeoutError):
            await self._js.delete_consumer(stream, durable)

    def listen(self, stream: str, filters: Sequence[str]) -> AsyncIterator[Delivery]:
        """Yield the last message of each subject, then new ones; see `triggers.listen`."""
        return triggers.listen(self._client, self._js, stream, filters)

    def subscribe(self, subject: str) -> AsyncIterator[None]:
        """Yield once subscribed, then at each message and reconnect; see `triggers.subscribe`."""
        return triggers.subscribe(self._client, subject)

    async def dead_letter(self, stream: str, delivery: Delivery, reason: str, service: str) -> None:
        """Publish a message as a dead letter, then end its delivery."""
        letter = dead_letters.dead_letter(delivery, stream=stream, reason=reason, service=service)
        log.error(
            "dead letter: %s #%d on %s: %s", stream, delivery.sequence, delivery.subject, reason
        )
        await self.publish(subjects.dead(stream), letter, dead_letters.message_id(letter))
        await delivery.term()

    async def purge_below(self, stream: str, sequence: int) -> None:
        """Remove the messages before `sequence`."""
        await self._js.purge_stream(stream, seq=sequence)

    async def purge_subject(self, stream: str, subject: str) -> None:
        """Remove all messages of a subject."""
        await self._js.purge_stream(stream, subject=subject)

    async def ack_floors(self, stream: str) -> dict[str, int]:
        """Return the ack floor (stream sequence) of each durable consumer of a stream, by name."""
        return {
            consumer.name: int(consumer.ack_floor.stream_seq)
            for consumer in await self._consumers(stream)
            if consumer.config.durable_name and consumer.ack_floor
        }

    async def depths(self, stream: str) -> list[streams.QueueDepth]:
        """Return what the durable consumers of a stream have before them. Raise DeadlineMissed."""
        try:
            consumers = await self._consumers(stream)
        except (TimeoutError, nats.errors.Error, JetStreamError, OSError) as error:
            raise DeadlineMissed(
                f"the broker does not tell the consumers of {stream}: {error or 'no answer'}"
            ) from None
        return [
            streams.QueueDepth(stream, c.name, int(c.num_pending or 0), int(c.num_ack_pending or 0))
            for c in consumers
            if c.config.durable_name
        ]

    async def _consumers(self, stream: str) -> list[ConsumerInfo]:
        found: list[ConsumerInfo] = []
        while True:
            page = await self._js.consumers_info(stream, len(found))
            found += page
            if len(page) < _LISTED:
                return found

    async def subjects_of(self, stream: str) -> list[str]:
        """Return the subjects of which a stream holds messages."""
        info = await self._js.stream_info(stream, subjects_filter=">")
        return list(info.state.subjects or {})

    async def state(self, stream: str) -> streams.StreamState:
        """Return the state of a stream."""
        info = await self._js.stream_info(stream)
        return streams.StreamState(born=str(info.created), bytes=info.state.bytes)


def _forbidden(error: Exception) -> bool:
    return "permissions violation" in str(error).lower()


async def _log_error(error: Exception) -> None:
    log.debug("nats: %s", error)
