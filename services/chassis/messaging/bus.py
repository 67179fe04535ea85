"""The log as services use it: publish until acknowledged, pull durably, listen for triggers (PROTOCOL 2 and 4)."""

import asyncio
import contextlib
import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import nats
import nats.errors
from google.protobuf.message import Message
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from banyan.errors import DeadlineMissed, InvalidInput
from banyan.v1 import events_pb2
from services.chassis.messaging import streams, subjects
from services.chassis.messaging.consumer import Consumer, ready
from services.chassis.messaging.delivery import Delivery
from services.chassis.messaging.flush import flushed

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 512 * 1024  # half of the broker's limit; senders split at this (PROTOCOL 4)
SCHEMA = "banyan.v1"
_REASON = 2000  # characters of why a message is a dead letter
_HEADER_BYTES = (
    4096  # headers count as well, and a broker cuts the connection of who sends too much
)
_TRY_S = 5.0
_ACK_S = 2.0  # of one attempt to publish: a broker that died before it acknowledged never will, and an id is stored once
_LISTEN_IDLE_S = 5.0
_HEAR_IDLE_S = 1.0
_FLUSH_S = 2
_LISTED = 256  # consumers in one answer of the broker, unless there are no more


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a remark of asyncio is: at the end of each TLS connection it makes one that says nothing to anybody."""
    return not record.getMessage().startswith("returning true from eof_received()")


class Bus:
    """One connection to NATS. Reconnects for ever; nothing that was acknowledged is published again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._js: JetStreamContext = client.jetstream(timeout=_TRY_S)

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
        """Connects, waiting for the server for at most `patience_s`. Raises DeadlineMissed.

        With `tls_root`, a PEM file, it speaks TLS and trusts that certificate alone, under the name `tls_name`.
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
            # Handshake first: else the client speaks plainly to whoever says that TLS is not required.
            options |= {
                "tls": ssl.create_default_context(cafile=tls_root),
                "tls_handshake_first": True,
            }
            options["tls_hostname"] = tls_name
            logging.getLogger("asyncio").addFilter(_worth_a_line)
        client = Client()
        try:
            # The client tries for ever, at the first connection too: the deadline is ours.
            async with asyncio.timeout(patience_s):
                await client.connect(url, error_cb=_note, allow_reconnect=True, **options)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            why = client.last_error or error
            await client.close()
            raise DeadlineMissed(
                f"no NATS server answers at {url} after {patience_s:.0f} s: {why}; is it running?"
            ) from None
        except BaseException:  # whoever waited is gone, and the client would try for ever
            await client.close()
            raise
        return cls(client)

    async def close(self) -> None:
        """Sends what is buffered and closes, within two seconds."""
        with contextlib.suppress(nats.errors.Error, OSError):  # a TimeoutError is one
            await flushed(self._client, 1.0)
        with contextlib.suppress(nats.errors.Error, OSError):
            async with asyncio.timeout(1.0):
                await self._client.close()

    @property
    def client(self) -> Client:
        """The connection, for what is not a stream of the log: object stores and hints."""
        return self._client

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    async def ensure_streams(self) -> None:
        """Creates the streams that are missing. Raises InvalidInput where no try will help."""
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
        """Publishes and waits for the broker's ack; its sequence. A timeout says nothing, so the same id is sent again."""
        data = message.SerializeToString()
        if len(data) > 2 * MAX_MESSAGE_BYTES - _HEADER_BYTES:
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
        """Like `publish`, for bytes that were encoded before."""
        headers = {"Nats-Msg-Id": msg_id, "Banyan-Schema": SCHEMA}
        if traceparent:
            headers["traceparent"] = traceparent
        ack = await self._retry(
            lambda: self._js.publish(subject, data, timeout=_ACK_S, headers=headers),
            f"publishing on {subject}",
            deadline_s,
        )
        return int(ack.seq)

    async def _retry(self, attempt: Any, what: str, deadline_s: float) -> Any:
        deadline = time.monotonic() + deadline_s
        delay = 0.05
        while True:
            try:
                return await attempt()
            except (TimeoutError, nats.errors.Error, JetStreamError, OSError) as error:
                if isinstance(error, nats.errors.MaxPayloadError) or _forbidden(error):
                    raise InvalidInput(f"{what}: the broker refuses it: {error}") from None
                if time.monotonic() + delay > deadline:
                    raise DeadlineMissed(
                        f"{what}: no ack from NATS in {deadline_s:.0f} s ({type(error).__name__}: {error})"
                    ) from None
                log.debug("%s: %s; trying again", what, error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    async def consumer(
        self,
        stream: str,
        durable: str,
        filters: Sequence[str],
        *,
        ack_wait_s: float = 30.0,
        max_ack_pending: int = 1000,
    ) -> Consumer:
        """A durable pull consumer with explicit acks, made if it is not there."""
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
        consumer = Consumer(self.ensure_streams, self._js, stream, durable, config)
        await self._retry(consumer.ensure, f"creating consumer {durable} on {stream}", 30.0)
        return consumer

    async def bind(self, stream: str, durable: str) -> Consumer:
        """A durable pull consumer that somebody else made, for clients who may not make any."""
        return Consumer(self.ensure_streams, self._js, stream, durable, None)

    async def delete_consumer(self, stream: str, durable: str) -> None:
        """Removes a durable consumer; nothing happens if it is gone."""
        with contextlib.suppress(JetStreamError, nats.errors.Error, asyncio.TimeoutError):
            await self._js.delete_consumer(stream, durable)

    async def listen(self, stream: str, filters: Sequence[str]) -> AsyncIterator[Delivery]:
        """Triggers: the last message of each subject, then new ones. Ephemeral; made again after any trouble."""
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            ack_policy=AckPolicy.NONE,
            filter_subjects=list(filters) if len(filters) > 1 else None,
            filter_subject=filters[0] if len(filters) == 1 else None,
            inactive_threshold=60.0,
            mem_storage=True,
        )
        while not self._client.is_closed:
            try:
                # With a name of ours, stream and filter are in the request's subject, where permissions can see them.
                config.name = f"listen-{secrets.token_hex(8)}"
                name = (await self._js.add_consumer(stream, config)).name
                subscription = await self._js.pull_subscribe_bind(consumer=name, stream=stream)
                try:
                    async for delivery in self._pull(subscription):
                        yield delivery
                finally:
                    with contextlib.suppress(nats.errors.Error):
                        await subscription.unsubscribe()
            except (TimeoutError, nats.errors.Error, JetStreamError, OSError) as error:
                log.debug("listening on %s: %s; again", stream, error)
                await asyncio.sleep(0.2)

    async def _pull(self, subscription: Any) -> AsyncIterator[Delivery]:
        connects = self._client.stats["reconnects"]
        while self._client.stats["reconnects"] == connects and not self._client.is_closed:
            try:
                for message in await ready(subscription, 64, _LISTEN_IDLE_S):
                    yield Delivery(message)
            except (TimeoutError, nats.errors.TimeoutError):
                continue

    async def subscribe(self, subject: str) -> AsyncIterator[None]:
        """Triggers without a consumer: something once it hears, at each message from then on, and after each reconnect.

        The broker keeps nothing for it, and its client needs no right but to subscribe.
        """
        heard = asyncio.Event()

        async def note(_: object) -> None:
            heard.set()

        subscription = await self._client.subscribe(subject, cb=note)
        with contextlib.suppress(
            nats.errors.Error, TimeoutError
        ):  # else it hears from the next connection on
            await flushed(self._client, _FLUSH_S)
        connects = -1
        try:
            while not self._client.is_closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_HEAR_IDLE_S if connects >= 0 else 0.0):
                        await heard.wait()
                if heard.is_set() or self._client.stats["reconnects"] != connects:
                    connects = self._client.stats["reconnects"]
                    heard.clear()
                    yield None
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def dead_letter(self, stream: str, delivery: Delivery, reason: str, service: str) -> None:
        """Publishes the message as a dead letter, then takes it out of the way. What fills a message fits into no letter: of
        that only its size is told."""
        whole = len(delivery.data) <= 2 * MAX_MESSAGE_BYTES - 2 * _HEADER_BYTES
        letter = events_pb2.DeadLetter(
            stream=stream,
            subject=delivery.subject,
            sequence=delivery.sequence,
            payload=delivery.data if whole else b"",
            reason=reason[:_REASON]
            if whole
            else f"{reason[:_REASON]} (its {len(delivery.data)} bytes fit into no letter)",
            attempts=delivery.attempts,
            service=service,
        )
        log.error(
            "dead letter: %s #%d on %s: %s", stream, delivery.sequence, delivery.subject, reason
        )
        await self.publish(
            subjects.dead(stream), letter, f"dead-{service}-{stream}-{delivery.sequence}"
        )
        await delivery.term()

    async def purge_below(self, stream: str, sequence: int) -> None:
        """Removes messages before `sequence`."""
        await self._js.purge_stream(stream, seq=sequence)

    async def purge_subject(self, stream: str, subject: str) -> None:
        """Removes all messages of a subject."""
        await self._js.purge_stream(stream, subject=subject)

    async def ack_floors(self, stream: str) -> dict[str, int]:
        """Ack floor (stream sequence) of each durable consumer of a stream, by name."""
        floors: dict[str, int] = {}
        offset = 0
        while True:
            infos = await self._js.consumers_info(stream, offset)
            floors |= {
                i.name: int(i.ack_floor.stream_seq)
                for i in infos
                if i.config.durable_name and i.ack_floor
            }
            offset += len(infos)
            if len(infos) < _LISTED:
                return floors

    async def subjects_of(self, stream: str) -> list[str]:
        """The subjects that a stream holds messages of."""
        return list((await self._js.stream_info(stream, subjects_filter=">")).state.subjects or {})

    async def state(self, stream: str) -> streams.StreamState:
        """How a stream stands."""
        info = await self._js.stream_info(stream)
        return streams.StreamState(str(info.created), info.state.bytes)


def _forbidden(error: Exception) -> bool:
    return "permissions violation" in str(error).lower()


async def _note(error: Exception) -> None:
    log.debug("nats: %s", error)
