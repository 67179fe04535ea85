"""Weights of a policy, rebuilt from a run's object store and checked by their digest (ADR 028).

The store holds whole versions and the changes since. A rebuild begins from the newest checked
version on this host, if the chain of changes leads to it, otherwise from the chain's whole version.
If a link is missing or wrong, the node requests the whole policy from the learner.
"""

import asyncio
import contextlib
import mmap
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from banyan.errors import BanyanError, InvalidInput, NotFound, PermanentError, TemporaryError
from banyan.policy import PolicyVersion
from banyan.v1 import events_pb2
from banyan.wire.segments import policy_to_wire
from services.chassis.messaging import notices, subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects.object_format import Object
from services.chassis.weights import file as weightfile
from services.chassis.weights import stream, versions
from services.chassis.weights.delta import Words
from services.chassis.weights.stream import Blocks, Header, Records
from services.chassis.weights.versions import Link
from services.rollout.growth.policy_selection import Published

RequestWhole = Callable[[Published, str], Awaitable[None]]
"""Request of a whole policy: (policy, reason)."""

_MOST_LINKS = 1000  # of a chain; a recipe allows no more
_STREAM_SHARE = 2  # size of an object, at most, as a multiple of the weights; beside its header


def whole_requester(bus: Bus, run_id: str, node_id: str) -> RequestWhole:
    """Return a function that requests whole policies from a run's learner."""

    async def request(published: Published, reason: str) -> None:
        wanted = events_pb2.WeightsWanted(
            run_id=run_id,
            node_id=node_id,
            policy=policy_to_wire(published.policy),
            reason=reason,
        )
        await notices.publish(bus.client, subjects.weights_wanted(run_id), wanted)

    return request


class Objects(Protocol):
    """A run's object store, to read. Raises NotFound, InvalidInput or TemporaryError."""

    async def find(self, name: str) -> Object:
        """Return the description of an object."""
        ...

    def read(self, item: Object) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an object."""
        ...


class Rebuilder:
    """Builder of weight files on this host.

    objects: the run's object store.
    request_whole: called for a policy that cannot be rebuilt.
    """

    def __init__(self, objects: Objects, request_whole: RequestWhole) -> None:
        self._objects, self._request_whole = objects, request_whole

    async def rebuild(self, published: Published, part: Path, checked: Mapping[Path, bytes]) -> str:
        """Write a policy's weights to a file and return the text of their manifest.

        part: the file to write.
        checked: digests by manifest of the checked versions on this host.

        Raises NotFound or InvalidInput after the policy was requested from the learner, or
        TemporaryError while NATS is away.
        """
        at_hand = {digest: path for path, digest in checked.items() if path.is_file()}
        try:
            return await self._write(published, part, at_hand)
        except BanyanError as error:
            part.unlink(missing_ok=True)
            if isinstance(error, PermanentError):
                await self._request_whole(published, str(error))
            raise

    async def _write(self, published: Published, part: Path, at_hand: Mapping[bytes, Path]) -> str:
        chain = await self._chain(published, at_hand)
        base = chain[0][1].parent  # the version at hand; None if the chain begins with a whole one
        try:
            if base is not None:
                base_file = at_hand[base.digest].with_suffix(".bin")
                await asyncio.to_thread(shutil.copyfile, base_file, part)
            with _words(part, published.bytes, anew=base is None) as (memory, words_W):
                for item, link in chain:
                    applier = _Applier(link, words_W, part)
                    await self._apply(item, applier)
                digest = await asyncio.to_thread(_digest, memory)
        except OSError as error:
            problem = error.strerror or error
            raise TemporaryError(
                f"cannot write weights to {part}: {problem}; is there room?"
            ) from None
        if digest != published.policy.digest:
            raise InvalidInput(
                f"weights of step {published.policy.step} rebuild to {digest.hex()[:16]} instead of"
                f" {published.policy.digest.hex()[:16]}"
            )
        return applier.manifest_text()

    async def _chain(
        self, published: Published, at_hand: Mapping[bytes, Path]
    ) -> list[tuple[Object, Link]]:
        """Return the objects to apply, oldest first, back to a whole version or to one at hand."""
        policy = published.policy
        max_bytes = _STREAM_SHARE * published.bytes + stream.MOST_BYTES
        version: PolicyVersion | None = policy
        chain: list[tuple[Object, Link]] = []
        while version is not None and (not chain or version.digest not in at_hand):
            if len(chain) == _MOST_LINKS:
                raise InvalidInput(
                    f"the chain of step {policy.step} has more than {_MOST_LINKS} links"
                )
            item = await self._objects.find(version.name)
            link = versions.read(item.labels)
            if link.version != version:
                raise NotFound(
                    f"object {version.name} holds weights {link.version.digest.hex()[:12]}, not"
                    " those of its name"
                )
            if item.size > max_bytes:
                raise InvalidInput(
                    f"object {version.name} has {item.size} bytes for weights of {published.bytes}"
                )
            chain.append((item, link))
            version = link.parent
        return chain[::-1]

    async def _apply(self, item: Object, applier: "_Applier") -> None:
        """Apply one object, outside the thread that grows trees."""
        async with contextlib.aclosing(self._objects.read(item)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(applier.feed, piece)
        applier.end()


class _Applier:
    """The application of one object's stream to the words of a file."""

    def __init__(self, link: Link, words_W: Words, path: Path) -> None:
        self._link, self._size, self._path = link, words_W.nbytes, path
        self._records, self._blocks = Records(), Blocks(words_W)
        self._header: Header | None = None

    def feed(self, piece: bytes) -> None:
        """Apply the records that are complete with this piece. Raises InvalidInput."""
        for record in self._records.feed(piece):
            if self._header is None:
                self._header = self._read_header(record)
            else:
                self._blocks.take(record)

    def end(self) -> None:
        """Raise InvalidInput if something is missing."""
        self._records.end()
        self._blocks.end()

    def manifest_text(self) -> str:
        """Return the manifest of the version, as FetchWeights carries it."""
        if self._header is None:
            raise InvalidInput(f"{self._link.version.name} has no header")
        return self._header.manifest.to_json()

    def _read_header(self, record: bytes) -> Header:
        """Return the header. Raises InvalidInput unless it agrees with the object's labels."""
        header, version = stream.read_header(record, self._path), self._link.version
        manifest = header.manifest
        parent = self._link.parent.digest if self._link.parent else b""
        if manifest.version != version or header.parent != parent:
            raise InvalidInput(f"{version.name} holds a version that its labels do not name")
        if manifest.bytes != self._size:
            raise InvalidInput(
                f"{version.name} is of {manifest.bytes} bytes where the policy has {self._size}"
            )
        return header


@contextlib.contextmanager
def _words(part: Path, size: int, anew: bool) -> Iterator[tuple[memoryview, Words]]:
    """Map a file to change it in place; provide its bytes, and the same memory as words.

    anew: whether the file begins as zeros, instead of as the version before.
    """
    with open(part, "w+b" if anew else "r+b") as file:
        if anew and size:
            # A full disk is then an error here, and not a signal later.
            os.posix_fallocate(file.fileno(), 0, size)
        present = os.fstat(file.fileno()).st_size
        if present != size:
            raise InvalidInput(
                f"the version before has {present} bytes where the policy has {size}"
            )
        if not size:
            yield memoryview(b""), stream.words_of(b"")
            return
        memory = mmap.mmap(file.fileno(), size)
        yield memoryview(memory), stream.words_of(memory)


def _digest(memory: memoryview) -> bytes:
    return weightfile.hasher().update(memory).digest()
