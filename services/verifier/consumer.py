"""The durable consumer `verifier` on `lineage.*.leaf`: fetch, read from the store, score, publish, and only then ack.

Only what the store accepted is scored. A leaf that it does not have (yet) comes again later, unless a newer claim or the
tree's end says that it never will be there.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from banyan.errors import BanyanError, InvalidInput, PermanentError
from banyan.v1 import events_pb2
from services.chassis import subjects
from services.chassis.bus import Bus, Consumer
from services.chassis.delivery import Delivery
from services.verifier.handlers import LeafHandler
from services.verifier.ports import Store, Transcript

log = logging.getLogger(__name__)

DURABLE = "verifier"
_FETCH_S = 1.0
_READ_S = 2.0  # how long the store may wait for leaves that it is about to ingest
_PROGRESS_S = 10.0  # a third of the consumer's ack wait
_DRAIN_S = 10.0
_BATCH = 64


@dataclass(frozen=True, slots=True)
class BusPublisher:
    """Publishes scores on the log."""

    bus: Bus

    async def publish(self, scored: events_pb2.LeafScored, msg_id: str, traceparent: str) -> None:
        """Returns when the broker has it."""
        await self.bus.publish(subjects.lineage(scored.run_id, "score"), scored, msg_id, traceparent=traceparent)


@dataclass(frozen=True, slots=True)
class Job:
    """A leaf and the delivery to answer."""

    delivery: Delivery
    leaf: events_pb2.LeafFinished

    @property
    def key(self) -> tuple[bytes, bytes, int, int]:
        """Which leaf, under which claim."""
        return self.leaf.tree_id, self.leaf.leaf.segment, self.leaf.leaf.end, self.leaf.claim_epoch


class LeafConsumer:
    """Takes at most `concurrency` leaves at a time."""

    def __init__(self, bus: Bus, store: Store, handler: LeafHandler, concurrency: int) -> None:
        self._bus, self._store, self._handler, self._most = bus, store, handler, concurrency
        self._batches: dict[asyncio.Task[None], int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then what is under way is finished, up to a deadline, and the rest comes again."""
        filters = [subjects.lineage("*", "leaf")]
        consumer = await self._bus.consumer(subjects.LINEAGE, DURABLE, filters, max_ack_pending=4 * self._most)
        try:
            while not stop.is_set():
                await self._take(consumer)
            if self._batches:
                await asyncio.wait(self._batches, timeout=_DRAIN_S)
        finally:
            for task in self._batches:
                task.cancel()

    async def _take(self, consumer: Consumer) -> None:
        room = self._most - sum(self._batches.values())
        if room <= 0:
            await asyncio.wait(self._batches, timeout=_FETCH_S, return_when=asyncio.FIRST_COMPLETED)
            return
        deliveries = await consumer.fetch(min(room, _BATCH), _FETCH_S)
        if deliveries:
            task = asyncio.create_task(self._batch(deliveries))
            self._batches[task] = len(deliveries)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._batches[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a batch of leaves failed and comes again", exc_info=error)

    async def _batch(self, deliveries: Sequence[Delivery]) -> None:
        jobs = [job for d in deliveries if (job := await self._decoded(d)) is not None]
        beat = asyncio.create_task(_keep(jobs))
        try:
            await self._score(jobs)
        finally:
            beat.cancel()

    async def _decoded(self, delivery: Delivery) -> Job | None:
        try:
            leaf = delivery.decode(events_pb2.LeafFinished)
            if len(leaf.tree_id) != 32 or len(leaf.leaf.segment) != 32 or leaf.run_id != delivery.run_id:
                raise InvalidInput(f"leaf {leaf.leaf.segment.hex()[:12]!r} of {leaf.run_id!r} on {delivery.subject}")
            return Job(delivery, leaf)
        except InvalidInput as error:
            await self._bus.bury(subjects.LINEAGE, delivery, str(error), "verifier")
            return None

    async def _score(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        try:
            transcripts = await self._store.read_leaves([job.leaf for job in jobs], _READ_S)
        except BanyanError as error:
            await self._unread(jobs, error)
            return
        found = {(t.key.tree_id, t.key.leaf.segment, t.key.leaf.end, t.key.claim_epoch): t for t in transcripts}
        await asyncio.gather(*(self._one(job, found.get(job.key)) for job in jobs))

    async def _unread(self, jobs: Sequence[Job], error: BanyanError) -> None:
        if not isinstance(error, PermanentError):
            log.warning("cannot read %d leaves: %s", len(jobs), error)
            await _later(jobs)
        elif len(jobs) == 1:
            await self._bus.bury(subjects.LINEAGE, jobs[0].delivery, str(error), "verifier")
        else:  # one of them is to blame
            for job in jobs:
                await self._score([job])

    async def _one(self, job: Job, transcript: Transcript | None) -> None:
        try:
            if transcript is None:
                await self._absent(job)
                return
            await self._handler.score(transcript)
            await job.delivery.ack()
        except PermanentError as error:
            await self._bus.bury(subjects.LINEAGE, job.delivery, str(error), "verifier")
        except BanyanError as error:
            log.warning("leaf %s comes again: %s", job.leaf.leaf.segment.hex()[:12], error)
            await _later([job])

    async def _absent(self, job: Job) -> None:
        standing = await self._store.standing(job.leaf.tree_id)
        if standing is not None and (standing.over or standing.claim_epoch > job.leaf.claim_epoch):
            log.info("leaf %s will never be stored: its claim is old", job.leaf.leaf.segment.hex()[:12])
            await job.delivery.ack()
            return
        await _later([job])


async def _later(jobs: Sequence[Job]) -> None:
    for job in jobs:
        await job.delivery.nak(min(0.25 * 2 ** min(job.delivery.attempts, 8), 30.0))


async def _keep(jobs: Sequence[Job]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_PROGRESS_S)
            for job in jobs:
                await job.delivery.in_progress()
