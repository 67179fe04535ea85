"""Rebuilds a policy's weights from a run's object store: a whole version, and what changed since, checked by its digest.

The newest version that was checked before is begun from, if the chain leads to it; else the chain's whole one. A link that
is missing or wrong is asked for: the learner then sends the policy whole.
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
from services.chassis.messaging.object_format import Object
from services.chassis.weights import file as weightfile
from services.chassis.weights import stream, versions
from services.chassis.weights.delta import Words
from services.chassis.weights.stream import Blocks, Header, Records
from services.chassis.weights.versions import Link
from services.rollout.growth.policy_selection import Published

Ask = Callable[[Published, str], Awaitable[None]]
_LONGEST = 1000  # links of a chain; a recipe allows no more
_STREAM_SHARE = 2  # an object is never larger than so many times the weights, and a header


def asker(bus: Bus, run_id: str, node_id: str) -> Ask:
    """Asks a run's learner for a policy's weights whole."""

    async def ask(published: Published, reason: str) -> None:
        policy = published.policy
        named = policy_to_wire(policy)
        wanted = events_pb2.WeightsWanted(
            run_id=run_id, node_id=node_id, policy=named, reason=reason
        )
        await notices.publish(bus.client, subjects.weights_wanted(run_id), wanted)

    return ask


class Objects(Protocol):
    """A run's object store, to read. Raises NotFound, InvalidInput or TemporaryError."""

    async def find(self, name: str) -> Object:
        """What is said of an object."""
        ...

    def read(self, found: Object) -> AsyncGenerator[bytes, None]:
        """Its bytes."""
        ...


class Rebuilder:
    """Writes the weights of policies into files of this host. `ask` tells the learner that a policy is wanted whole."""

    def __init__(self, objects: Objects, ask: Ask) -> None:
        self._objects, self._ask = objects, ask

    async def rebuild(self, published: Published, part: Path, checked: Mapping[Path, bytes]) -> str:
        """Writes a policy's weights to `part`; the text of their manifest. `checked`: manifests at hand, with digests.

        Raises NotFound or InvalidInput, having asked; TemporaryError where NATS is away.
        """
        try:
            return await self._write(
                published,
                part,
                {digest: path for path, digest in checked.items() if path.is_file()},
            )
        except BanyanError as error:
            part.unlink(missing_ok=True)
            if isinstance(error, PermanentError):
                await self._ask(published, str(error))
            raise

    async def _write(self, published: Published, part: Path, at_hand: Mapping[bytes, Path]) -> str:
        chain = await self._chain(published, at_hand)
        begun = chain[0][1].parent
        try:
            if begun is not None:
                await asyncio.to_thread(
                    shutil.copyfile, at_hand[begun.digest].with_suffix(".bin"), part
                )
            with _words(part, published.bytes, anew=begun is None) as (memory, words_W):
                appliers = [
                    await self._apply(found, _Applier(link, words_W, part)) for found, link in chain
                ]
                digest = await asyncio.to_thread(_digest, memory)
        except OSError as error:
            raise TemporaryError(
                f"cannot write weights to {part}: {error.strerror or error}; is there room?"
            ) from None
        if digest != published.policy.digest:
            said = published.policy.digest.hex()[:16]
            raise InvalidInput(
                f"weights of step {published.policy.step} rebuild to {digest.hex()[:16]} instead of {said}"
            )
        return appliers[-1].manifest_text()

    async def _chain(
        self, published: Published, at_hand: Mapping[bytes, Path]
    ) -> list[tuple[Object, Link]]:
        """The objects to apply, oldest first, back to a whole version or to one at hand."""
        policy = published.policy
        wanted: PolicyVersion | None = policy
        found: list[tuple[Object, Link]] = []
        while wanted is not None and (not found or wanted.digest not in at_hand):
            if len(found) == _LONGEST:
                raise InvalidInput(
                    f"the chain of step {policy.step} has more than {_LONGEST} links"
                )
            item = await self._objects.find(wanted.name)
            link = versions.read(item.labels)
            if link.version != wanted:
                raise NotFound(
                    f"object {wanted.name} holds weights {link.version.digest.hex()[:12]}, not those of its name"
                )
            if item.size > _STREAM_SHARE * published.bytes + stream.MOST_BYTES:
                raise InvalidInput(
                    f"object {wanted.name} has {item.size} bytes for weights of {published.bytes}"
                )
            found.append((item, link))
            wanted = link.parent
        return found[::-1]

    async def _apply(self, item: Object, applier: "_Applier") -> "_Applier":
        """Applies one object, in another thread than the one that trees are grown by."""
        async with contextlib.aclosing(self._objects.read(item)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(applier.feed, piece)
        applier.end()
        return applier


class _Applier:
    """One object's stream on its way into the words of a file."""

    def __init__(self, link: Link, words_W: Words, path: Path) -> None:
        self._link, self._size, self._path = link, words_W.nbytes, path
        self._records, self._blocks = Records(), Blocks(words_W)
        self._header: Header | None = None

    def feed(self, piece: bytes) -> None:
        """Applies what is whole with this piece. Raises InvalidInput."""
        for record in self._records.feed(piece):
            if self._header is None:
                self._header = self._read(record)
            else:
                self._blocks.take(record)

    def end(self) -> None:
        """Raises InvalidInput if something is missing."""
        self._records.end()
        self._blocks.end()

    def manifest_text(self) -> str:
        """The manifest of the version, as FetchWeights carries it."""
        if self._header is None:
            raise InvalidInput(f"{self._link.version.name} has no header")
        return self._header.manifest.to_json()

    def _read(self, record: bytes) -> Header:
        """The header, which must say what the object's labels say."""
        header, link = stream.read_header(record, self._path), self._link
        manifest, parent = header.manifest, link.parent.digest if link.parent else b""
        if manifest.version != link.version or header.parent != parent:
            raise InvalidInput(f"{link.version.name} holds a version that its labels do not name")
        if manifest.bytes != self._size:
            raise InvalidInput(
                f"{link.version.name} is of {manifest.bytes} bytes where the policy has {self._size}"
            )
        return header


@contextlib.contextmanager
def _words(part: Path, size: int, anew: bool) -> Iterator[tuple[memoryview, Words]]:
    """A file's bytes to change in place, and the same as words; zeros if `anew`."""
    with open(part, "w+b" if anew else "r+b") as file:
        if anew and size:
            os.posix_fallocate(
                file.fileno(), 0, size
            )  # a full disk is an error here, and not a signal later
        if (found := os.fstat(file.fileno()).st_size) != size:
            raise InvalidInput(f"the version before has {found} bytes where the policy has {size}")
        if not size:
            yield memoryview(b""), stream.words_of(b"")
            return
        memory = mmap.mmap(file.fileno(), size)
        yield memoryview(memory), stream.words_of(memory)


def _digest(memory: memoryview) -> bytes:
    return weightfile.hasher().update(memory).digest()
