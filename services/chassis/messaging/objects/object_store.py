"""An object store on JetStream in the layout of NATS' own (`nats object ls` reads it).

An object is its chunks, then one message with its size and SHA-256: an object without all of its
chunks does not exist. Readers use direct reads of the bucket's stream, many chunks a request. They
create nothing in the broker and need the right to one subject. The library's own reads create a
consumer for each object, and took 10 s for 64 MiB.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError as NoStream

from banyan.errors import DeadlineMissed, InvalidInput, NotFound, TemporaryError
from banyan.reasons import Reason
from services.chassis.messaging.objects import object_format
from services.chassis.messaging.objects.object_format import Chunks, Object

log = logging.getLogger(__name__)

_IN_FLIGHT = 8  # chunks sent before the first is acknowledged
_READ_BATCH = 16  # chunks that a reader requests at a time
_TRY_S = 5.0
_SETTLE_S = 0.5
_RETRY_S = 0.25
FULL = (
    Reason.STORE_FULL
)  # reason of the error if the bucket takes no more until objects are removed
# Error codes of the broker.
_NO_SPACE = 10047
_FULL = 10077
_DIFFERS = 10058
_FAULTS = (TimeoutError, nats.errors.Error, JetStreamError, OSError)


class Bucket:
    """An object store. NotFound for missing objects, TemporaryError where a retry may help."""

    def __init__(self, client: Client, name: str) -> None:
        self.name, self.stream = name, f"OBJ_{name}"
        self._client, self._js = client, client.jetstream(timeout=_TRY_S)

    # -- for the owner --

    async def ensure(self, max_bytes: int) -> str:
        """Create the bucket if it is missing, or update its limit; return its creation time.

        Raise InvalidInput if the broker has no space for it.
        """
        config = StreamConfig(
            name=self.stream,
            subjects=[f"$O.{self.name}.C.>", f"$O.{self.name}.M.>"],
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            max_bytes=max_bytes,
            allow_rollup_hdrs=True,
            allow_direct=True,
        )
        with _translated(f"making object store {self.name}"):
            try:
                return str((await self._js.add_stream(config)).created)
            except APIError as error:
                if error.err_code == _NO_SPACE:
                    raise InvalidInput(
                        f"NATS has no room for object store {self.name} of"
                        f" {max_bytes >> 20} MiB beside its streams: set resources.weights: file,"
                        " or, with a broker of your own, raise max_file_store"
                    ) from None
                if error.err_code != _DIFFERS:
                    raise
                return str((await self._js.update_stream(config)).created)

    async def put(self, name: str, pieces: Iterable[bytes], labels: Mapping[str, str]) -> Object:
        """Store an object; it becomes visible once it is complete.

        If `pieces` raises, nothing is left.
        """
        nuid = secrets.token_hex(11)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._discard, nuid)
            with _translated(f"sending {name} to object store {self.name}"):
                chunks = Chunks(pieces)
                await self._send(self._chunks_subject(nuid), chunks)
                stored = Object(
                    name=name,
                    nuid=nuid,
                    size=chunks.size,
                    chunks=chunks.count,
                    digest=chunks.digest.digest(),
                    labels=labels,
                )
                await self._js.publish(
                    self._about(name),
                    object_format.describe(stored, self.name),
                    timeout=_TRY_S,
                    headers={"Nats-Rollup": "sub"},
                )
            undo.pop_all()
        return stored

    async def _discard(self, nuid: str) -> None:
        """Remove the chunks of an object that does not become visible."""
        with contextlib.suppress(*_FAULTS):  # `keep_only` removes later what stays here
            await self._js.purge_stream(self.stream, subject=self._chunks_subject(nuid))

    async def _send(self, subject: str, chunks: Chunks) -> None:
        """Send all chunks in order.

        The library's own asynchronous publishing does not report refusals.
        """
        inbox, unacknowledged = self._client.new_inbox(), 0
        acks = await self._client.subscribe(inbox)
        try:
            while (chunk := await asyncio.to_thread(chunks.next)) is not None:
                await self._client.publish(subject, chunk, reply=inbox)
                unacknowledged += 1
                if unacknowledged == _IN_FLIGHT:
                    _check_ack(await acks.next_msg(_TRY_S))
                    unacknowledged -= 1
            while unacknowledged:
                _check_ack(await acks.next_msg(_TRY_S))
                unacknowledged -= 1
        finally:
            # Otherwise chunks could arrive behind the purge that removes them.
            with contextlib.suppress(*_FAULTS):
                for _ in range(unacknowledged):
                    await acks.next_msg(_SETTLE_S)
            with contextlib.suppress(nats.errors.Error):
                await acks.unsubscribe()

    async def drop(self, dropped: Object) -> None:
        """Remove an object, its description first; a newer one of that name stays."""
        about = self._about(dropped.name)
        with _translated(f"removing {dropped.name} from object store {self.name}"):
            if await self._nuid(about) == dropped.nuid:
                await self._js.purge_stream(self.stream, subject=about)
            await self._js.purge_stream(self.stream, subject=self._chunks_subject(dropped.nuid))

    async def keep_only(self, kept: Iterable[Object]) -> None:
        """Remove all other objects, and chunks of unfinished ones."""
        wanted: set[str] = set()
        for item in kept:
            wanted |= {self._about(item.name), self._chunks_subject(item.nuid)}
        with _translated(f"clearing object store {self.name}"):
            # In reverse order: descriptions (M) before chunks (C).
            for subject in sorted(set(await self._subjects()) - wanted, reverse=True):
                await self._js.purge_stream(self.stream, subject=subject)

    async def drop_unfinished(self) -> None:
        """Remove chunks that belong to no object."""
        with _translated(f"clearing object store {self.name}"):
            subjects = await self._subjects()
            about = {subject for subject in subjects if self._is_about(subject)}
            nuids = [await self._nuid(subject) for subject in about]
            wanted = {self._chunks_subject(nuid) for nuid in nuids if nuid}
            for subject in set(subjects) - about - wanted:
                await self._js.purge_stream(self.stream, subject=subject)

    async def _nuid(self, subject: str) -> str:
        """Return the nuid of the object that a subject describes; empty if it is unreadable."""
        try:
            return (await self._last(subject, subject)).nuid
        except (NotFound, InvalidInput):
            return ""

    async def objects(self) -> list[Object]:
        """Return all objects."""
        with _translated(f"looking into object store {self.name}"):
            subjects = await self._subjects()
            return [await self._last(s, s) for s in subjects if self._is_about(s)]

    async def _subjects(self) -> list[str]:
        info = await self._js.stream_info(self.stream, subjects_filter=">")
        return list(info.state.subjects or {})

    # -- for readers --

    async def find(self, name: str) -> Object:
        """Return the newest object of a name."""
        with _translated(f"looking for {name} in object store {self.name}"):
            return await self._last(self._about(name), name)

    async def _last(self, subject: str, label: str) -> Object:
        request = {"last_by_subj": subject}
        async with contextlib.aclosing(self._get(request, 1, label)) as messages:
            async for message in messages:
                return object_format.read(message.data, self.name)
        raise NotFound(f"object store {self.name} does not hold {label}")

    async def read(self, wanted: Object, patience_s: float = 30.0) -> AsyncGenerator[bytes, None]:
        """Yield an object's chunks, resuming after faults for as long as chunks arrive.

        Raise InvalidInput if the bytes are not those that were stored.
        """
        digest = hashlib.sha256()
        count, size = 0, 0
        next_sequence = 1
        deadline = time.monotonic() + patience_s
        while count < wanted.chunks:
            try:
                chunks = self._read_batch(wanted, next_sequence, wanted.chunks - count)
                async with contextlib.aclosing(chunks):
                    async for message in chunks:
                        next_sequence = _sequence(message) + 1
                        count += 1
                        size += len(message.data)
                        deadline = time.monotonic() + patience_s
                        if size > wanted.size:
                            raise InvalidInput(
                                f"{wanted.name} has more than the {wanted.size} bytes"
                                " that are said of it"
                            )
                        await asyncio.to_thread(digest.update, message.data)
                        yield message.data
            except TemporaryError as error:
                if time.monotonic() > deadline:
                    raise
                log.debug("%s; going on at chunk %d", error, count)
                await asyncio.sleep(_RETRY_S)
        if size != wanted.size or digest.digest() != wanted.digest:
            raise InvalidInput(
                f"{wanted.name} came with other bytes than were put:"
                f" {size} of {wanted.size}, or changed ones"
            )

    async def _read_batch(
        self, wanted: Object, sequence: int, most: int
    ) -> AsyncGenerator[Msg, None]:
        """Yield messages of an object's chunks from a sequence of the stream on."""
        most = min(_READ_BATCH, most)
        subject = self._chunks_subject(wanted.nuid)
        request = {"seq": sequence, "batch": most, "next_by_subj": subject}
        with _translated(f"reading {wanted.name} of object store {self.name}"):
            async with contextlib.aclosing(self._get(request, most, wanted.name)) as messages:
                async for message in messages:
                    yield message

    async def _get(
        self, request: Mapping[str, Any], most: int, label: str
    ) -> AsyncGenerator[Msg, None]:
        """Yield the messages of a direct read, at most so many."""
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        try:
            subject = f"$JS.API.DIRECT.GET.{self.stream}"
            await self._client.publish(subject, json.dumps(request).encode(), reply=inbox)
            for _ in range(most):
                message = await subscription.next_msg(_TRY_S)
                status = (message.headers or {}).get("Status", "")
                if status == "503":
                    raise NotFound(
                        f"there is no object store {self.name}, which should hold {label}"
                    )
                if status == "404":
                    raise NotFound(f"object store {self.name} does not hold {label}")
                if status == "204":
                    return
                if status:
                    raise TemporaryError(
                        f"NATS answers {status} to a read of {label} in object store {self.name}"
                    )
                yield message
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    def _about(self, name: str) -> str:
        """Return the subject of an object's description."""
        return f"$O.{self.name}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def _is_about(self, subject: str) -> bool:
        return subject.startswith(f"$O.{self.name}.M.")

    def _chunks_subject(self, nuid: str) -> str:
        return f"$O.{self.name}.C.{nuid}"


async def delete(client: Client, name: str) -> None:
    """Delete a bucket and its objects, if it exists."""
    with contextlib.suppress(NoStream):
        await client.jetstream(timeout=_TRY_S).delete_stream(f"OBJ_{name}")


async def names(client: Client) -> list[str]:
    """Return the names of all buckets of the account."""
    js = client.jetstream(timeout=_TRY_S)
    streams: list[str] = []
    while infos := await js.streams_info(len(streams)):  # the broker lists 256 at a time
        streams += [str(info.config.name) for info in infos]
    return [name.removeprefix("OBJ_") for name in streams if name.startswith("OBJ_")]


def _check_ack(ack: Msg) -> None:
    """Raise the broker's error if it refused a chunk."""
    if (ack.headers or {}).get("Status", "") == "503":
        raise NoStreamResponseError
    answer = json.loads(ack.data)
    if "error" in answer:
        APIError.from_error(answer["error"])  # raises it


def _sequence(message: Msg) -> int:
    try:
        return int((message.headers or {})["Nats-Sequence"])
    except (KeyError, ValueError):
        raise TemporaryError("a chunk came without its sequence") from None


@contextlib.contextmanager
def _translated(action: str) -> Iterator[None]:
    """Raise the broker's errors as ours, with the action that failed."""
    try:
        yield
    except (NoStream, NoStreamResponseError, nats.errors.NoRespondersError):
        raise NotFound(f"{action}: there is no such object store") from None
    except TimeoutError as error:
        if isinstance(error, DeadlineMissed):
            raise
        raise DeadlineMissed(f"{action}: NATS did not answer within {_TRY_S:.0f} s") from None
    except APIError as error:
        if error.err_code == _FULL:
            raise TemporaryError(
                f"{action}: the object store is full; older versions must go first", reason=FULL
            ) from None
        raise TemporaryError(f"{action}: {error}") from None
    except (nats.errors.Error, JetStreamError, OSError) as error:
        raise TemporaryError(f"{action}: {type(error).__name__}: {error}") from None
