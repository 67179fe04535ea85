"""The worker loop of the verifier's durable consumers: fetch, share out by run, process, answer.

Each run has a share of its own (`share.py`); messages beyond it are delivered again later. The loop
reports progress to the broker while a message waits or is processed. A stop returns the waiting
messages at once and drains the others.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from banyan.errors import BanyanError, InvalidInput
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.consumer import Consumer
from services.chassis.messaging.delivery import Delivery
from services.chassis.rpc.health import Pulse
from services.verifier.intake.share import MAX_WAITING, Share

log = logging.getLogger(__name__)

T = TypeVar("T")
ACK_WAIT_S = 5.0  # until messages of a killed verifier are delivered again
PROGRESS_S = 1.5  # between progress reports; less than a third of the ack wait
MAX_ATTEMPTS = 48  # about twenty minutes of deliveries to work whose preconditions never come
_FETCH_S = 1.0
_FETCH_DEADLINE_S = 120.0  # a fetch, and a dead letter for each malformed message of it
_DRAIN_S = 10.0
_FIRST_RETRY_S = 0.25
_LONGEST_RETRY_S = 30.0
# Of all runs, delayed messages included: a run's backlog must not block the messages of others.
_MAX_ACK_PENDING = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """The messages of a loop, and how many of them it processes at once.

    durable: name of the durable consumer on LINEAGE.
    subjects: filters of the consumer.
    fetch: messages of one fetch.
    max_under_way: weight of a run's jobs under way below which more begin.
    max_waiting: messages of a run that wait beyond those.
    batched: hand all jobs that may begin to one call of `process`, not one job each.
    """

    durable: str
    subjects: Sequence[str]
    fetch: int
    max_under_way: int
    max_waiting: int = MAX_WAITING
    batched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[T]):
    """A decoded message and the delivery to answer once it is processed.

    content: the decoded message.
    weight: units of work that count against the run's share.
    label: description for the log, for example "leaf 3f0c21ab9d44".
    """

    delivery: Delivery
    content: T
    weight: int
    label: str

    @property
    def bytes(self) -> int:
        """Size of the message."""
        return len(self.delivery.data)


class WorkerLoop(ABC, Generic[T]):
    """Base class of the consumers: subclasses decode messages and process jobs."""

    def __init__(self, bus: Bus, name: str, intake: Intake) -> None:
        self._bus, self._intake = bus, intake
        self._shares: dict[str, Share[Job[T]]] = {}
        self._under_way: dict[asyncio.Task[None], Sequence[Job[T]]] = {}
        self.pulse = Pulse(name)

    @abstractmethod
    def decode(self, delivery: Delivery) -> Job[T] | None:
        """Return the job of a message, None if it asks for nothing. Raise InvalidInput."""

    @abstractmethod
    async def process(self, jobs: Sequence[Job[T]]) -> None:
        """Process jobs of one run and answer the delivery of each."""

    async def run(self, stop: asyncio.Event) -> None:
        """Process messages until `stop` is set, then drain up to a deadline."""
        consumer = await self._bus.consumer(
            subjects.LINEAGE,
            self._intake.durable,
            self._intake.subjects,
            ack_wait_s=ACK_WAIT_S,
            max_ack_pending=_MAX_ACK_PENDING,
            standing=self._intake.fetch,
        )
        progress = asyncio.create_task(self._report_progress())
        try:
            while not stop.is_set():
                self.pulse.beat("taking messages", _FETCH_DEADLINE_S)
                await self._fetch(consumer)
            self.pulse.rest()
            await consumer.close()
            await self._return_waiting()
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=_DRAIN_S)
        finally:
            progress.cancel()
            for task in self._under_way:
                task.cancel()

    async def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Turn a message into a dead letter. If that fails it is delivered again later."""
        try:
            await self._bus.dead_letter(subjects.LINEAGE, delivery, reason, "verifier")
        except BanyanError as error:
            log.warning("cannot publish a dead letter (%s): %s", reason, error)
            await retry_later(delivery)

    async def _fetch(self, consumer: Consumer) -> None:
        for delivery in await consumer.fetch(self._intake.fetch, _FETCH_S):
            try:
                job = self.decode(delivery)
            except InvalidInput as error:
                await self.dead_letter(delivery, str(error))
                continue
            if job is None:
                await delivery.ack()
            else:
                await self._offer(job)
        for run_id in list(self._shares):
            self._begin(run_id)

    async def _offer(self, job: Job[T]) -> None:
        run_id = job.delivery.run_id
        share = self._shares.setdefault(
            run_id,
            Share(max_under_way=self._intake.max_under_way, max_waiting=self._intake.max_waiting),
        )
        if not share.offer(job):
            attempts = job.delivery.attempts
            await job.delivery.nak(share.delay_s(job, attempts, time.monotonic()))
        elif not self._intake.batched:
            self._begin(run_id)

    def _begin(self, run_id: str) -> None:
        share = self._shares[run_id]
        jobs = share.begin()
        batches = [jobs] if self._intake.batched and jobs else [[job] for job in jobs]
        for batch in batches:
            task = asyncio.create_task(self._process(batch))
            self._under_way[task] = batch
            task.add_done_callback(lambda done: self._done(done, run_id))
        if share.idle:
            del self._shares[run_id]

    async def _process(self, jobs: Sequence[Job[T]]) -> None:
        await self.safely(self.process(jobs), jobs)

    async def safely(self, work: Awaitable[None], jobs: Sequence[Job[T]]) -> None:
        """Await work on jobs; if it fails unforeseen they come again, and nothing else ends."""
        try:
            await work
        except Exception as error:  # a mistake in the program must not end the loop for other runs
            log_retry(jobs[0].label, error)
            for job in jobs:
                await retry_later(job.delivery)

    def _done(self, task: asyncio.Task[None], run_id: str) -> None:
        jobs = self._under_way.pop(task)
        self._shares[run_id].release(sum(job.weight for job in jobs), time.monotonic())
        if not task.cancelled():
            self._begin(run_id)

    async def _return_waiting(self) -> None:
        """Return the waiting messages, so that another verifier receives them at once."""
        for share in self._shares.values():
            while share.waiting:
                await share.waiting.popleft().delivery.nak(0.0)

    async def _report_progress(self) -> None:
        """Report progress on all messages here, so that they are not delivered again."""
        while True:
            await asyncio.sleep(PROGRESS_S)
            jobs = [job for share in self._shares.values() for job in share.waiting]
            jobs += [job for batch in self._under_way.values() for job in batch]
            for job in jobs:
                await job.delivery.in_progress()


async def retry_later(delivery: Delivery) -> None:
    """Have a message delivered again, later each time."""
    await delivery.nak(min(_FIRST_RETRY_S * 2 ** min(delivery.attempts, 8), _LONGEST_RETRY_S))


def log_retry(label: str, error: BaseException) -> None:
    """Log why a job is tried again; an error that was not raised on purpose with its traceback."""
    if isinstance(error, BanyanError):
        log.warning("%s comes again: %s", label, error)
    else:
        log.error("%s comes again after an unexpected error: %r", label, error, exc_info=error)
