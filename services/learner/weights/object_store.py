"""Hands versions of the weights out through an object store on NATS: whole ones, and between them what changed (ADR 028).

A version is there once its last message is; a sender that dies before has sent nothing that anybody sees. A node that cannot
rebuild one asks for it, and gets it whole, unless a newer one is on its way.
"""

import asyncio
import contextlib
import logging
import mmap
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Protocol

from banyan.errors import BanyanError, NotFound, TemporaryError
from banyan.recipe import Recipe
from banyan.v1 import events_pb2
from banyan.wire.segments import policy_from_wire
from services.chassis.messaging import notices, subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.object_store import FULL, Bucket
from services.chassis.process import process, telemetry
from services.chassis.weights import lock
from services.chassis.weights.delta import Words
from services.chassis.weights.file import WeightManifest
from services.chassis.weights.stream import Encoding, words_of
from services.chassis.weights.versions import Link
from services.learner.weights import version_chain
from services.learner.weights.version_chain import Sent

log = logging.getLogger(__name__)

_PATIENCE_S = 120.0  # as long as the learner waits for the treestore
_AGAIN_S = 1.0
_SHARE = 0.1  # of the time: what whole versions that were asked for may take


class Outlet(Protocol):
    """Where weights go beside the learner's folder, before anybody is told of them."""

    async def put(self, manifest: WeightManifest) -> Mapping[str, float]:
        """Hands a version out; numbers for the policy's metrics. Raises BanyanError."""
        ...

    async def settle(self) -> None:
        """Removes what earlier learners of the run left, once a policy of this one is announced."""
        ...


class FolderOnly:
    """Weight store `file`: the folder is all there is."""

    async def put(self, manifest: WeightManifest) -> Mapping[str, float]:
        """Nothing more to do."""
        return {}

    async def settle(self) -> None:
        """Nothing was left."""


@contextlib.asynccontextmanager
async def handing_out(
    recipe: Recipe, bus: Bus, run_id: str, stop: asyncio.Event
) -> AsyncIterator[Outlet]:
    """The weight store that a recipe names, which answers nodes while the block runs. stop: nothing is waited for then."""
    if recipe.resources.weights != "nats":
        yield FolderOnly()
        return
    bucket = Bucket(bus.client, subjects.weights_bucket(run_id))
    outlet = ObjectStoreWeights(bucket, recipe.resources.weights_base_every, stop=stop)
    asked = notices.subscribe(bus.client, subjects.weights_wanted(run_id), events_pb2.WeightsWanted)
    serving = asyncio.create_task(outlet.serve(asked))
    serving.add_done_callback(_said_if_failed)
    try:
        yield outlet
    finally:
        await process.cancelled([serving])
        outlet.close()


def _said_if_failed(serving: "asyncio.Task[None]") -> None:
    """The learner goes on: versions go out all the same."""
    if not serving.cancelled() and (error := serving.exception()) is not None:
        log.error(
            "nodes that ask for whole weights get no answer any more: %s: %s",
            type(error).__name__,
            error,
        )


class _TooMuch(Exception):
    """What changed takes more than it saves."""


class ObjectStoreWeights:
    """Weight store `nats`."""

    def __init__(
        self,
        bucket: Bucket,
        every: int,
        patience_s: float = _PATIENCE_S,
        slack_bytes: int = version_chain.SLACK_BYTES,
        stop: asyncio.Event | None = None,
    ) -> None:
        self._bucket, self._every, self._patience_s, self._slack_bytes = (
            bucket,
            every,
            patience_s,
            slack_bytes,
        )
        self._stop = stop or asyncio.Event()
        self._held: list[Sent] = []
        self._born = ""
        self._newest: WeightManifest | None = None
        self._hold = ExitStack()  # keeps the newest version's pages from being written over
        self._lock = asyncio.Lock()  # one of: a new version, one that was asked for
        self._not_before = 0.0

    async def put(self, manifest: WeightManifest) -> Mapping[str, float]:
        """Sends a version, and lets older ones go."""
        begun = time.monotonic()
        async with self._lock:
            sent, changed = await self._insist(manifest)
            self._take(manifest)
            await self._forget(version_chain.unneeded(self._held))
        telemetry.count("banyan.weights.sent", sent.object.size)
        numbers = {
            "weights_sent_bytes": sent.object.size,
            "weights_whole": sent.whole,
            "weights_changed": changed,
        }
        return {name: float(value) for name, value in numbers.items()} | {
            "weights_seconds": time.monotonic() - begun
        }

    async def _insist(self, manifest: WeightManifest) -> tuple[Sent, float]:
        """Sends it, again and again while NATS is away; not where the learner is told to stop: NATS may be gone for good."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return await self._send(manifest)
            except (
                TemporaryError,
                NotFound,
            ) as error:  # not found: the broker lost the store amid the sending
                if time.monotonic() > deadline or self._stop.is_set():
                    raise
                log.warning(
                    "weights of step %d are not sent: %s; trying again", manifest.step, error
                )
                full = error.reason == FULL
            if full:
                await self._clear()
            await asyncio.sleep(_AGAIN_S)

    async def _clear(self) -> None:
        """Removes from a full store what other learners left, and what did not go when it should have."""
        gone = version_chain.unneeded(self._held)
        kept = [one for one in self._held if one not in gone]
        try:
            await self._bucket.keep_only(one.object for one in kept)
        except (TemporaryError, NotFound) as error:
            log.warning("the full object store %s is not cleared: %s", self._bucket.name, error)
        else:
            self._held = kept

    async def _send(self, manifest: WeightManifest, whole: bool = False) -> tuple[Sent, float]:
        born = await self._bucket.ensure(
            version_chain.limit_bytes(manifest.bytes, self._slack_bytes)
        )
        if born != self._born:  # new, or made anew: what was in it is gone, or nobody's
            self._held, self._born = [], born
            await self._bucket.drop_unfinished()
        room = (
            0
            if whole or not self._follows(manifest)
            else version_chain.room(self._held, manifest.bytes, self._every)
        )
        if room:
            with contextlib.suppress(_TooMuch):
                return await self._changes(manifest, room)
        return await self._whole(manifest)

    def _follows(self, manifest: WeightManifest) -> bool:
        """Whether the newest version in the store is at hand, and has the same layout."""
        before = self._newest
        at_hand = (
            before is not None and self._held and self._held[-1].link.version == before.version
        )
        return bool(at_hand) and before is not None and before.tensors == manifest.tensors

    async def _changes(self, manifest: WeightManifest, room: int) -> tuple[Sent, float]:
        before = self._newest
        assert before is not None
        with _mapped(manifest) as new_W, _mapped(before) as old_W:
            encoding = Encoding(manifest, new_W, before.digest, old_W)
            sent = await self._put(Link(manifest.version, before.version), _bounded(encoding, room))
            return sent, encoding.changed / max(1, len(new_W))

    async def _whole(self, manifest: WeightManifest) -> tuple[Sent, float]:
        with _mapped(manifest) as new_W:
            return await self._put(Link(manifest.version, None), Encoding(manifest, new_W)), 1.0

    async def _put(self, link: Link, pieces: Iterable[bytes]) -> Sent:
        sent = Sent(link, await self._bucket.put(link.version.name, pieces, link.labels()))
        self._held.append(sent)
        kind = "whole" if sent.whole else "what changed"
        log.info(
            "weights of step %d sent to %s: %s, %d bytes",
            link.version.step,
            self._bucket.name,
            kind,
            sent.object.size,
        )
        return sent

    def _take(self, manifest: WeightManifest) -> None:
        """The newest version, that the next one's changes are of."""
        self._hold.close()
        self._hold.enter_context(lock.held(manifest.manifest_path))
        self._newest = manifest

    async def _forget(self, gone: list[Sent]) -> None:
        """Lets versions go. One that stays because NATS is away is held on to, and goes later."""
        for one in gone:
            try:
                await self._bucket.drop(one.object)
            except TemporaryError as error:
                log.warning(
                    "weights of step %d are not removed: %s; the next version tries again",
                    one.link.version.step,
                    error,
                )
                return
            except NotFound:
                pass  # it went with its store
            self._held = [held for held in self._held if held != one]

    async def settle(self) -> None:
        """Removes what earlier learners of the run left."""
        try:
            async with self._lock:
                await self._bucket.keep_only(one.object for one in self._held)
        except (TemporaryError, NotFound) as error:
            log.warning("older weights are not removed: %s; the next learner will", error)

    # -- what nodes ask for --

    async def serve(self, asked: AsyncIterator[events_pb2.WeightsWanted]) -> None:
        """Sends the newest version whole when a node asks for it; others it will hear of."""
        async for wanted in asked:
            try:
                await self._answer(wanted)
            except (BanyanError, OSError) as error:  # a file that cannot be mapped, among others
                log.warning(
                    "weights of step %d are not sent whole: %s; nodes ask again",
                    wanted.policy.step,
                    error,
                )

    async def _answer(self, wanted: events_pb2.WeightsWanted) -> None:
        version = policy_from_wire(wanted.policy)
        if time.monotonic() < self._not_before:
            return
        async with self._lock:
            newest = self._newest
            if newest is None or newest.version != version:
                return
            who, why = (
                " ".join(text[:200].split()) for text in (wanted.node_id[:64], wanted.reason)
            )
            log.warning("node %s asks for step %d whole: %s", who, version.step, why)
            begun = time.monotonic()
            older = [one for one in self._held if one.link.version == version]
            try:
                await self._send(newest, whole=True)
                await self._forget(
                    [
                        *older,
                        *version_chain.unneeded([one for one in self._held if one not in older]),
                    ]
                )
            finally:  # a try that fails takes its time too
                self._not_before = begun + (time.monotonic() - begun) / _SHARE

    def close(self) -> None:
        """Lets go of the newest version's file. The store stays: whoever goes on with the run clears it."""
        self._hold.close()


def _bounded(pieces: Iterable[bytes], room: int) -> Iterator[bytes]:
    """The pieces, up to so many bytes. Raises _TooMuch."""
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise _TooMuch
        yield piece


@contextlib.contextmanager
def _mapped(manifest: WeightManifest) -> Iterator[Words]:
    """The words of a version's file, which nobody writes over meanwhile."""
    with lock.held(manifest.manifest_path) as file:
        if not manifest.bytes:
            yield words_of(b"")
            return
        yield words_of(mmap.mmap(file.fileno(), manifest.bytes, access=mmap.ACCESS_READ))
