"""An object store on JetStream, laid out as NATS' own are (`nats object ls` reads it), with rights that can be narrow.

An object is its chunks, then one message with its size and SHA-256: there is no object without all of its chunks. Readers
use direct reads of the bucket's stream, many chunks a request: they make nothing in the broker, and need the right to one
subject. The library's own reads make a consumer for each object, and took 10 s for 64 MiB.
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
from services.chassis.messaging import object_format as objects
from services.chassis.messaging.object_format import Chunks, Object

log = logging.getLogger(__name__)

_IN_FLIGHT = 8  # chunks that are sent before the first is acknowledged
_AT_ONCE = 16  # chunks that a reader asks for at a time
_TRY_S = 5.0
_SETTLE_S = 0.5
_AGAIN_S = 0.25
FULL = Reason.STORE_FULL  # reason of an error: nothing more goes in before something went
_NO_ROOM, _FULL, _DIFFERS = 10047, 10077, 10058
_FAULTS = (TimeoutError, nats.errors.Error, JetStreamError, OSError)


class Bucket:
    """One object store. Raises NotFound for what is not there, TemporaryError where another try may help."""

    def __init__(self, client: Client, name: str) -> None:
        self.name, self.stream = name, f"OBJ_{name}"
        self._client, self._js = client, client.jetstream(timeout=_TRY_S)

    # -- its owner's --

    async def ensure(self, max_bytes: int) -> str:
        """Makes the bucket if it is not there; when it was made. Raises InvalidInput if the broker has no room for it."""
        subjects = [f"$O.{self.name}.C.>", f"$O.{self.name}.M.>"]
        config = StreamConfig(
            name=self.stream,
            subjects=subjects,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            max_bytes=max_bytes,
            allow_rollup_hdrs=True,
            allow_direct=True,
        )
        with _named(f"making object store {self.name}"):
            try:
                return str((await self._js.add_stream(config)).created)
            except APIError as error:
                if error.err_code == _NO_ROOM:
                    raise InvalidInput(
                        f"NATS has no room for object store {self.name} of {max_bytes >> 20} MiB beside its streams:"
                        " set resources.weights: file, or, with a broker of your own, raise max_file_store"
                    ) from None
                if error.err_code != _DIFFERS:
                    raise
                return str((await self._js.update_stream(config)).created)

    async def put(self, name: str, pieces: Iterable[bytes], labels: Mapping[str, str]) -> Object:
        """Sends an object; nobody sees it before all of it is there. What `pieces` raises leaves nothing."""
        nuid = secrets.token_hex(11)
        try:
            with _named(f"sending {name} to object store {self.name}"):
                chunks = Chunks(pieces)
                await self._send(f"$O.{self.name}.C.{nuid}", chunks)
                made = Object(name, nuid, chunks.size, chunks.count, chunks.digest.digest(), labels)
                headers = {"Nats-Rollup": "sub"}
                await self._js.publish(
                    self._about(name),
                    objects.describe(made, self.name),
                    timeout=_TRY_S,
                    headers=headers,
                )
                return made
        except BaseException:
            with contextlib.suppress(*_FAULTS):  # what is left is removed by `keep_only` later
                await self._js.purge_stream(self.stream, subject=f"$O.{self.name}.C.{nuid}")
            raise

    async def _send(self, subject: str, chunks: Chunks) -> None:
        """Sends all chunks in order. The library's own asynchronous publishing never tells of a refusal."""
        inbox, waiting = self._client.new_inbox(), 0
        acks = await self._client.subscribe(inbox)
        try:
            while (chunk := await asyncio.to_thread(chunks.next)) is not None:
                await self._client.publish(subject, chunk, reply=inbox)
                waiting += 1
                if waiting == _IN_FLIGHT:
                    _check(await acks.next_msg(_TRY_S))
                    waiting -= 1
            for left in range(waiting, 0, -1):
                waiting = left
                _check(await acks.next_msg(_TRY_S))
            waiting = 0
        finally:
            with contextlib.suppress(*_FAULTS):  # else chunks could come in behind what clears them
                for _ in range(waiting):
                    await acks.next_msg(_SETTLE_S)
            with contextlib.suppress(nats.errors.Error):
                await acks.unsubscribe()

    async def drop(self, found: Object) -> None:
        """Removes an object, first what is said of it; nothing of a newer one by that name."""
        with _named(f"removing {found.name} from object store {self.name}"):
            if await self._nuid(self._about(found.name)) == found.nuid:
                await self._js.purge_stream(self.stream, subject=self._about(found.name))
            await self._js.purge_stream(self.stream, subject=f"$O.{self.name}.C.{found.nuid}")

    async def keep_only(self, kept: Iterable[Object]) -> None:
        """Removes all else: objects, and chunks of objects that were never finished."""
        wanted = {s for o in kept for s in (self._about(o.name), f"$O.{self.name}.C.{o.nuid}")}
        with _named(f"clearing object store {self.name}"):
            for subject in sorted(set(await self._subjects()) - wanted, reverse=True):  # M before C
                await self._js.purge_stream(self.stream, subject=subject)

    async def drop_unfinished(self) -> None:
        """Removes chunks that belong to no object."""
        with _named(f"clearing object store {self.name}"):
            subjects = await self._subjects()
            about = {s for s in subjects if s.startswith(f"$O.{self.name}.M.")}
            wanted = {f"$O.{self.name}.C.{nuid}" for s in about if (nuid := await self._nuid(s))}
            for subject in set(subjects) - about - wanted:
                await self._js.purge_stream(self.stream, subject=subject)

    async def _nuid(self, subject: str) -> str:
        """Of the object that a subject is about; empty where nobody can read what is said of it."""
        try:
            return (await self._last(subject, subject)).nuid
        except (NotFound, InvalidInput):
            return ""

    async def objects(self) -> list[Object]:
        """All objects."""
        with _named(f"looking into object store {self.name}"):
            return [
                await self._last(s, s)
                for s in await self._subjects()
                if s.startswith(f"$O.{self.name}.M.")
            ]

    async def _subjects(self) -> list[str]:
        info = await self._js.stream_info(self.stream, subjects_filter=">")
        return list(info.state.subjects or {})

    # -- its readers' --

    async def find(self, name: str) -> Object:
        """The newest object of a name."""
        with _named(f"looking for {name} in object store {self.name}"):
            return await self._last(self._about(name), name)

    async def _last(self, subject: str, what: str) -> Object:
        async with contextlib.aclosing(self._get({"last_by_subj": subject}, 1, what)) as messages:
            async for message in messages:
                return objects.read(message.data, self.name)
        raise NotFound(f"object store {self.name} does not hold {what}")

    async def read(self, found: Object, patience_s: float = 30.0) -> AsyncGenerator[bytes, None]:
        """An object's chunks; goes on where it stopped while chunks come. Raises InvalidInput if they are other ones."""
        subject, at, count, size, digest = (
            f"$O.{self.name}.C.{found.nuid}",
            1,
            0,
            0,
            hashlib.sha256(),
        )
        deadline = time.monotonic() + patience_s
        while count < found.chunks:
            most = min(_AT_ONCE, found.chunks - count)
            request = {"seq": at, "batch": most, "next_by_subj": subject}
            try:
                with _named(f"reading {found.name} of object store {self.name}"):
                    async with contextlib.aclosing(
                        self._get(request, most, found.name)
                    ) as messages:
                        async for message in messages:
                            at, count, size = (
                                _sequence(message) + 1,
                                count + 1,
                                size + len(message.data),
                            )
                            deadline = time.monotonic() + patience_s
                            if size > found.size:
                                raise InvalidInput(
                                    f"{found.name} has more than the {found.size} bytes that are said of it"
                                )
                            await asyncio.to_thread(digest.update, message.data)
                            yield message.data
            except TemporaryError as error:
                if time.monotonic() > deadline:
                    raise
                log.debug("%s; going on at chunk %d", error, count)
                await asyncio.sleep(_AGAIN_S)
        if size != found.size or digest.digest() != found.digest:
            raise InvalidInput(
                f"{found.name} came with other bytes than were put: {size} of {found.size}, or changed ones"
            )

    async def _get(
        self, request: Mapping[str, Any], most: int, what: str
    ) -> AsyncGenerator[Msg, None]:
        """Direct reads: at most so many messages."""
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
                        f"there is no object store {self.name}, which should hold {what}"
                    )
                if status == "404":
                    raise NotFound(f"object store {self.name} does not hold {what}")
                if status == "204":
                    return
                if status:
                    raise TemporaryError(
                        f"NATS answers {status} to a read of {what} in object store {self.name}"
                    )
                yield message
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    def _about(self, name: str) -> str:
        return f"$O.{self.name}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


async def delete(client: Client, name: str) -> None:
    """Removes a bucket with all that it holds; nothing happens if it is gone."""
    with contextlib.suppress(NoStream):
        await client.jetstream(timeout=_TRY_S).delete_stream(f"OBJ_{name}")


async def names(client: Client) -> list[str]:
    """All buckets of the account."""
    js, found, offset = client.jetstream(timeout=_TRY_S), list[str](), 0
    while infos := await js.streams_info(offset):  # the broker lists 256 at a time
        offset += len(infos)
        found += [
            str(i.config.name).removeprefix("OBJ_")
            for i in infos
            if str(i.config.name).startswith("OBJ_")
        ]
    return found


def _check(ack: Msg) -> None:
    """Raises what the broker says of a chunk that it refused."""
    if (ack.headers or {}).get("Status", "") == "503":
        raise NoStreamResponseError
    said = json.loads(ack.data)
    if "error" in said:
        APIError.from_error(said["error"])  # raises it


def _sequence(message: Msg) -> int:
    try:
        return int((message.headers or {})["Nats-Sequence"])
    except (KeyError, ValueError):
        raise TemporaryError("a chunk came without its sequence") from None


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """Says what was done when the broker failed at it."""
    try:
        yield
    except (NoStream, NoStreamResponseError, nats.errors.NoRespondersError):
        raise NotFound(f"{what}: there is no such object store") from None
    except TimeoutError as error:
        if isinstance(error, DeadlineMissed):
            raise
        raise DeadlineMissed(f"{what}: NATS did not answer within {_TRY_S:.0f} s") from None
    except APIError as error:
        if error.err_code == _FULL:
            raise TemporaryError(
                f"{what}: the object store is full; older versions must go first", reason=FULL
            ) from None
        raise TemporaryError(f"{what}: {error}") from None
    except (nats.errors.Error, JetStreamError, OSError) as error:
        raise TemporaryError(f"{what}: {type(error).__name__}: {error}") from None
