"""Weights through an object store on NATS: whole versions, and changes between them (ADR 028).

A version exists once its last message does; a sender that dies before it has sent nothing that is
visible. A node that cannot rebuild a version asks for it, and gets it whole unless a newer one is
on its way.
"""

import asyncio
import contextlib
import logging
import mmap
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import ExitStack

from banyan.errors import BanyanError, NotFound, TemporaryError
from banyan.recipe import Recipe
from banyan.v1 import events_pb2
from banyan.wire.segments import policy_from_wire
from services.chassis.messaging import notices, subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects.object_store import FULL, Bucket
from services.chassis.process import process, telemetry
from services.chassis.weights import lock
from services.chassis.weights.delta import Words
from services.chassis.weights.file import WeightManifest
from services.chassis.weights.stream import Encoding, words_of
from services.chassis.weights.versions import Link
from services.learner.weights import version_chain
from services.learner.weights.outlet import FolderOnly, Outlet
from services.learner.weights.version_chain import Sent

log = logging.getLogger(__name__)

_PATIENCE_S = 120.0  # as long as the learner waits for the treestore
_RETRY_S = 1.0
_REQUESTED_SHARE = 0.1  # of the time: for whole versions that nodes request


@contextlib.asynccontextmanager
async def open_outlet(
    recipe: Recipe, bus: Bus, run_id: str, stop: asyncio.Event
) -> AsyncIterator[Outlet]:
    """Open the weight store of a recipe, which answers nodes while the block runs.

    stop: set when the learner is stopped; nothing is waited for then
    """
    if recipe.resources.weights != "nats":
        yield FolderOnly()
        return
    bucket = Bucket(bus.client, subjects.weights_bucket(run_id))
    outlet = ObjectStoreWeights(bucket, recipe.resources.weights_base_every, stop=stop)
    subject = subjects.weights_wanted(run_id)
    requests = notices.subscribe(bus.client, subject, events_pb2.WeightsWanted)
    serving = asyncio.create_task(outlet.serve(requests))
    serving.add_done_callback(_log_failure)
    try:
        yield outlet
    finally:
        await process.cancelled([serving])
        outlet.close()


def _log_failure(serving: "asyncio.Task[None]") -> None:
    """Log the end of serving requests; the learner goes on, as versions go out all the same."""
    if not serving.cancelled() and (error := serving.exception()) is not None:
        kind = type(error).__name__
        log.error("nodes that ask for whole weights get no answer any more: %s: %s", kind, error)


class _TooManyChanges(Exception):
    """Changes that take more bytes than they save."""


class ObjectStoreWeights:
    """Weight store `nats`.

    every: longest chain of a whole version and its changes, in versions
    patience_s: longest time for which sending a version is tried
    slack_bytes: bytes of the store beside versions
    stop: set when the learner is stopped
    """

    def __init__(
        self,
        bucket: Bucket,
        every: int,
        patience_s: float = _PATIENCE_S,
        slack_bytes: int = version_chain.SLACK_BYTES,
        stop: asyncio.Event | None = None,
    ) -> None:
        self._bucket, self._every = bucket, every
        self._patience_s, self._slack_bytes = patience_s, slack_bytes
        self._stop = stop or asyncio.Event()
        self._stored: list[Sent] = []
        self._born = ""  # identity of the store that holds them
        self._newest: WeightManifest | None = None
        self._lock_of_newest = ExitStack()  # keeps its pages from being written over
        self._busy = asyncio.Lock()  # held while a version is sent
        self._not_before = 0.0  # of the next requested version, in time.monotonic()

    async def put(self, manifest: WeightManifest) -> Mapping[str, float]:
        """Send a version, and remove the older ones that are not needed."""
        begun = time.monotonic()
        async with self._busy:
            sent, changed = await self._send_patiently(manifest)
            self._set_newest(manifest)
            await self._remove(version_chain.unneeded(self._stored))
        telemetry.count("banyan.weights.sent", sent.object.size)
        return {
            "weights_sent_bytes": float(sent.object.size),
            "weights_whole": float(sent.whole),
            "weights_changed": float(changed),
            "weights_seconds": time.monotonic() - begun,
        }

    async def _send_patiently(self, manifest: WeightManifest) -> tuple[Sent, float]:
        """Send a version, retrying while NATS is away.

        A stopped learner does not retry: NATS may be gone for good.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return await self._send(manifest)
            except (TemporaryError, NotFound) as error:
                # NotFound: the broker lost the store in the middle.
                if time.monotonic() > deadline or self._stop.is_set():
                    raise
                step = manifest.step
                log.warning("weights of step %d are not sent: %s; trying again", step, error)
                full = error.reason == FULL
            if full:
                await self._clear()
            await asyncio.sleep(_RETRY_S)

    async def _clear(self) -> None:
        """Remove from a full store all versions that this learner does not need."""
        gone = version_chain.unneeded(self._stored)
        kept = [sent for sent in self._stored if sent not in gone]
        try:
            await self._bucket.keep_only(sent.object for sent in kept)
        except (TemporaryError, NotFound) as error:
            log.warning("the full object store %s is not cleared: %s", self._bucket.name, error)
        else:
            self._stored = kept

    async def _send(self, manifest: WeightManifest, whole: bool = False) -> tuple[Sent, float]:
        """Send a version; return it with the share of its words that changed."""
        limit = version_chain.limit_bytes(manifest.bytes, self._slack_bytes)
        born = await self._bucket.ensure(limit)
        if born != self._born:  # made anew: nothing in it is this learner's
            self._stored, self._born = [], born
            await self._bucket.drop_unfinished()
        if not whole and self._follows(manifest):
            budget = version_chain.change_budget(self._stored, manifest.bytes, self._every)
            if budget:
                with contextlib.suppress(_TooManyChanges):
                    return await self._send_changes(manifest, budget)
        return await self._send_whole(manifest)

    def _follows(self, manifest: WeightManifest) -> bool:
        """Tell whether the newest stored version is at hand, with the layout of the next."""
        before = self._newest
        if before is None or not self._stored:
            return False
        at_hand = self._stored[-1].link.version == before.version
        return at_hand and before.tensors == manifest.tensors

    async def _send_changes(self, manifest: WeightManifest, budget: int) -> tuple[Sent, float]:
        before = self._newest
        assert before is not None
        with _mapped(manifest) as new_W, _mapped(before) as old_W:
            encoding = Encoding(manifest, new_W, before.digest, old_W)
            link = Link(manifest.version, before.version)
            sent = await self._store(link, _bounded(encoding, budget))
            return sent, encoding.changed / max(1, len(new_W))

    async def _send_whole(self, manifest: WeightManifest) -> tuple[Sent, float]:
        with _mapped(manifest) as new_W:
            link = Link(manifest.version, None)
            return await self._store(link, Encoding(manifest, new_W)), 1.0

    async def _store(self, link: Link, pieces: Iterable[bytes]) -> Sent:
        sent = Sent(link, await self._bucket.put(link.version.name, pieces, link.labels()))
        self._stored.append(sent)
        log.info(
            "weights of step %d sent to %s: %s, %d bytes",
            link.version.step,
            self._bucket.name,
            "whole" if sent.whole else "what changed",
            sent.object.size,
        )
        return sent

    def _set_newest(self, manifest: WeightManifest) -> None:
        """Lock the newest version, from which the next one's changes are computed."""
        self._lock_of_newest.close()
        self._lock_of_newest.enter_context(lock.held(manifest.manifest_path))
        self._newest = manifest

    async def _remove(self, gone: list[Sent]) -> None:
        """Remove versions; those that stay because NATS is away are removed with the next one."""
        for sent in gone:
            try:
                await self._bucket.drop(sent.object)
            except TemporaryError as error:
                step = sent.link.version.step
                log.warning(
                    "weights of step %d are not removed: %s; the next version tries again",
                    step,
                    error,
                )
                return
            except NotFound:
                pass  # it went with its store
            self._stored = [kept for kept in self._stored if kept != sent]

    async def drop_foreign(self) -> None:
        """Remove the versions of earlier learners of the run."""
        try:
            async with self._busy:
                await self._bucket.keep_only(sent.object for sent in self._stored)
        except (TemporaryError, NotFound) as error:
            log.warning("older weights are not removed: %s; the next learner will", error)

    # -- requests of nodes --

    async def serve(self, requests: AsyncIterator[events_pb2.WeightsWanted]) -> None:
        """Send the newest version whole when a node requests it; ignore requests for others."""
        async for request in requests:
            try:
                await self._answer(request)
            except (BanyanError, OSError) as error:  # a file that cannot be mapped, among others
                step = request.policy.step
                log.warning(
                    "weights of step %d are not sent whole: %s; nodes ask again", step, error
                )

    async def _answer(self, request: events_pb2.WeightsWanted) -> None:
        version = policy_from_wire(request.policy)
        if time.monotonic() < self._not_before:
            return
        async with self._busy:
            newest = self._newest
            if newest is None or newest.version != version:
                return
            node, reason = _printable(request.node_id[:64]), _printable(request.reason)
            log.warning("node %s asks for step %d whole: %s", node, version.step, reason)
            begun = time.monotonic()
            same = [sent for sent in self._stored if sent.link.version == version]
            try:
                await self._send(newest, whole=True)
                others = [sent for sent in self._stored if sent not in same]
                await self._remove([*same, *version_chain.unneeded(others)])
            finally:  # a failed try takes its time too
                self._not_before = begun + (time.monotonic() - begun) / _REQUESTED_SHARE

    def close(self) -> None:
        """Unlock the newest version's file.

        The store stays: the next learner of the run clears it.
        """
        self._lock_of_newest.close()


def _printable(text: str) -> str:
    """Return the begin of a node's text on one line."""
    return " ".join(text[:200].split())


def _bounded(pieces: Iterable[bytes], budget: int) -> Iterator[bytes]:
    """Yield the pieces; raise _TooManyChanges once they exceed a number of bytes."""
    for piece in pieces:
        budget -= len(piece)
        if budget < 0:
            raise _TooManyChanges
        yield piece


@contextlib.contextmanager
def _mapped(manifest: WeightManifest) -> Iterator[Words]:
    """Map the words of a version's file, locked against being written over."""
    with lock.held(manifest.manifest_path) as file:
        if not manifest.bytes:
            yield words_of(b"")
            return
        yield words_of(mmap.mmap(file.fileno(), manifest.bytes, access=mmap.ACCESS_READ))
