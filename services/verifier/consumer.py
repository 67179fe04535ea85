"""The durable consumer `verifier` on `lineage.*.leaf`: fetch, read from the store, score, publish, and only then ack.

Only what the store accepted is scored. A leaf that it does not have (yet) comes again later, unless a newer claim or the
tree's end says that it never will be there.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from banyan.errors import BanyanError, InvalidInput, PermanentError
from banyan.reasons import Reason
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.consumer import Consumer
from services.chassis.messaging.delivery import Delivery
from services.chassis.rpc.health import Pulse
from services.verifier.handlers import LeafHandler
from services.verifier.ports import Store, Transcript
from services.verifier.share import Share, again_s

log = logging.getLogger(__name__)

DURABLE = "verifier"
_FETCH_S = 1.0
_READ_S = 2.0  # how long the store may wait for leaves that it is about to ingest
ACK_WAIT_S = 5.0  # when leaves that a killed verifier had taken come again
_PROGRESS_S = 1.5  # less than a third of it
_DRAIN_S = 10.0
_TAKE_S = 120.0  # a fetch, and a dead letter for each bad message of it
_BATCH = 64
# Of all runs, with those that come again later: a run's backlog must not keep the messages of others away.
MOST_PENDING = 20_000
# About twenty minutes. Messages that wait take room from others; a leaf that is stored later is said again by the store.
_MOST_ATTEMPTS = 48


@dataclass(frozen=True, slots=True)
class Job:
    """The leaves of a message, and the delivery to answer once all of them are scored."""

    delivery: Delivery
    finished: Sequence[events_pb2.LeafFinished]

    @property
    def leaves(self) -> int:
        """How many there are."""
        return len(self.finished)

    @property
    def bytes(self) -> int:
        """Size of the message."""
        return len(self.delivery.data)


Key = tuple[bytes, bytes, int, int]  # tree, segment, end, claim


def _key(leaf: events_pb2.LeafFinished) -> Key:
    return leaf.tree_id, leaf.leaf.segment, leaf.leaf.end, leaf.claim_epoch


class LeafConsumer:
    """Takes messages as they come; of each run up to `concurrency` leaves, and one message more, are under way at once."""

    def __init__(self, bus: Bus, store: Store, handler: LeafHandler, concurrency: int) -> None:
        self._bus, self._store, self._handler, self._most = bus, store, handler, concurrency
        self._shares: dict[str, Share[Job]] = {}
        self._batches: dict[asyncio.Task[None], Sequence[Job]] = {}
        self.pulse = Pulse("leaves")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then what is under way is finished, up to a deadline, and the rest comes again."""
        filters = [subjects.lineage("*", "leaf")]
        consumer = await self._bus.consumer(
            subjects.LINEAGE, DURABLE, filters, ack_wait_s=ACK_WAIT_S, max_ack_pending=MOST_PENDING
        )
        beat = asyncio.create_task(self._beat())
        try:
            while not stop.is_set():
                self.pulse.beat("taking messages", _TAKE_S)
                await self._take(consumer)
            self.pulse.rest()
            await consumer.close()
            await self._give_back()
            if self._batches:
                await asyncio.wait(self._batches, timeout=_DRAIN_S)
        finally:
            beat.cancel()
            for task in self._batches:
                task.cancel()

    async def _take(self, consumer: Consumer) -> None:
        for delivery in await consumer.fetch(_BATCH, _FETCH_S):
            job = await self._decoded(delivery)
            if job is not None and not self._share(delivery.run_id).offer(job):
                await delivery.nak(again_s(delivery.attempts))
        for run_id in list(self._shares):
            self._begin(run_id)

    def _share(self, run_id: str) -> Share[Job]:
        return self._shares.setdefault(run_id, Share(self._most))

    def _begin(self, run_id: str) -> None:
        share = self._shares[run_id]
        if jobs := share.begin():
            task = asyncio.create_task(self._score(jobs))
            self._batches[task] = jobs
            task.add_done_callback(lambda done: self._done(done, run_id))
        elif share.idle:
            del self._shares[run_id]

    def _done(self, task: asyncio.Task[None], run_id: str) -> None:
        self._shares[run_id].done(sum(job.leaves for job in self._batches.pop(task)))
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a batch of leaves failed and comes again", exc_info=error)
        self._begin(run_id)

    async def _give_back(self) -> None:
        """Says that others may have what only waits here."""
        for share in self._shares.values():
            while share.waiting:
                await share.waiting.popleft().delivery.nak(0.0)

    async def _beat(self) -> None:
        """Keeps what is here from being delivered again."""
        while True:
            await asyncio.sleep(_PROGRESS_S)
            waiting = [job for share in self._shares.values() for job in share.waiting]
            for job in [*waiting, *(job for jobs in list(self._batches.values()) for job in jobs)]:
                await job.delivery.in_progress()

    async def _decoded(self, delivery: Delivery) -> Job | None:
        try:
            leaves = delivery.decode(events_pb2.LeavesFinished).leaves
            for leaf in leaves:
                if (
                    len(leaf.tree_id) != 32
                    or len(leaf.leaf.segment) != 32
                    or leaf.run_id != delivery.run_id
                ):
                    raise InvalidInput(
                        f"leaf {leaf.leaf.segment.hex()[:12]!r} of {leaf.run_id!r} on {delivery.subject}"
                    )
            if len(leaves) > subjects.MOST_LEAVES:  # who says more is no node of ours
                raise InvalidInput(
                    f"a message names {len(leaves)} leaves; at most {subjects.MOST_LEAVES} are taken"
                )
            if not leaves:
                raise InvalidInput("a message of leaves holds none")
            return Job(delivery, list(leaves))
        except InvalidInput as error:
            await self._bus.dead_letter(subjects.LINEAGE, delivery, str(error), "verifier")
            return None

    async def _score(self, jobs: Sequence[Job]) -> None:
        try:
            found, refused = await self._read([leaf for job in jobs for leaf in job.finished])
        except BanyanError as error:
            log.warning("cannot read the leaves of %d messages: %s", len(jobs), error)
            await _later(jobs)
            return
        await asyncio.gather(*(self._one(job, found, refused) for job in jobs))

    async def _read(
        self, leaves: Sequence[events_pb2.LeafFinished]
    ) -> tuple[dict[Key, Transcript], dict[Key, str]]:
        """Transcripts of what the store has, and why it refuses a leaf for ever."""
        try:
            found = await self._store.read_leaves(leaves, _READ_S)
        except PermanentError as error:
            if len(leaves) == 1:
                return {}, {_key(leaves[0]): str(error)}
            alone = [await self._read([leaf]) for leaf in leaves]  # one of them is to blame
            return {k: t for some, _ in alone for k, t in some.items()}, {
                k: w for _, bad in alone for k, w in bad.items()
            }
        except BanyanError as error:
            if error.reason != Reason.RESOURCE_EXHAUSTED or len(leaves) == 1:
                raise
            halves = (
                leaves[: len(leaves) // 2],
                leaves[len(leaves) // 2 :],
            )  # more text than an answer holds
            one, other = [await self._read(half) for half in halves]
            return one[0] | other[0], one[1] | other[1]
        return {
            (t.key.tree_id, t.key.leaf.segment, t.key.leaf.end, t.key.claim_epoch): t for t in found
        }, {}

    async def _one(
        self, job: Job, found: Mapping[Key, Transcript], refused: Mapping[Key, str]
    ) -> None:
        """Scores what the store has. What it lacks brings the message again, with the scores that are owed still."""
        here = [found[_key(leaf)] for leaf in job.finished if _key(leaf) in found]
        ends = await asyncio.gather(*(self._handler.score(t) for t in here), return_exceptions=True)
        failed = [end for end in ends if isinstance(end, BaseException)]
        wrong = [refused[_key(leaf)] for leaf in job.finished if _key(leaf) in refused]
        wrong += [str(error) for error in failed if isinstance(error, PermanentError)]
        again = [error for error in failed if not isinstance(error, PermanentError)]
        for error in again:
            _warn(job, error)
        absent = [
            leaf for leaf in job.finished if _key(leaf) not in found and _key(leaf) not in refused
        ]
        try:
            missed = [leaf for leaf in absent if not await self._never(leaf)]
            if missed and not again and job.delivery.attempts >= _MOST_ATTEMPTS:
                wrong.append(
                    f"ABSENT: the store has no leaf {missed[0].leaf.segment.hex()[:12]} of {missed[0].tree_id.hex()[:12]}"
                )
            elif again or missed:
                await _later([job])
                return
            if wrong:
                await self._bus.dead_letter(
                    subjects.LINEAGE, job.delivery, "; ".join(wrong[:3]), "verifier"
                )
            else:
                await job.delivery.ack()
        except BanyanError as error:
            _warn(job, error)
            await _later([job])

    async def _never(self, leaf: events_pb2.LeafFinished) -> bool:
        """Whether the store will not have a leaf any more."""
        standing = await self._store.standing(leaf.tree_id)
        if standing is None or not (standing.over or standing.claim_epoch > leaf.claim_epoch):
            return False
        if await self._store.read_leaves(
            [leaf], 0.0
        ):  # it was stored after we looked, and before the next claim
            return False
        log.info("leaf %s will never be stored: its claim is old", leaf.leaf.segment.hex()[:12])
        return True


def _warn(job: Job, error: BaseException) -> None:
    """What nobody raised on purpose is a mistake in the program, and shows where it was made."""
    first = job.finished[0].leaf.segment.hex()[:12]
    if isinstance(error, BanyanError):
        log.warning("leaf %s comes again: %s", first, error)
    else:
        log.error("leaf %s comes again after an unexpected error: %r", first, error, exc_info=error)


async def _later(jobs: Sequence[Job]) -> None:
    for job in jobs:
        await job.delivery.nak(min(0.25 * 2 ** min(job.delivery.attempts, 8), 30.0))
