"""The durable consumer `verifier` on `lineage.*.leaf`: read from the store, score, publish, ack.

Only leaves that the store accepted are scored. A leaf that it lacks is tried again later, unless a
newer claim or the end of its tree shows that the store will never have it.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from banyan.errors import BanyanError, InvalidInput, PermanentError
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.delivery import Delivery
from services.verifier.handlers import LeafHandler
from services.verifier.ports import Store, Transcript
from services.verifier.worker_loop import (
    MAX_ATTEMPTS,
    Intake,
    Job,
    WorkerLoop,
    log_retry,
    retry_later,
)

log = logging.getLogger(__name__)

_READ_S = 2.0  # that the store may wait for leaves that it is about to ingest
_MOST_READ = 64  # leaves
_FETCH = 64
_DIGEST_BYTES = 32

Leaves = Sequence[events_pb2.LeafFinished]
Key = tuple[bytes, bytes, int, int]  # tree, segment, end, claim epoch


@dataclass(slots=True)
class _Answer:
    """The store's answer about leaves.

    transcripts: those that it has.
    refused: why it refuses a leaf for good.
    unread: leaves at the end that it says nothing about.
    """

    transcripts: dict[Key, Transcript] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)
    unread: int = 0

    def add(self, other: "_Answer") -> None:
        self.transcripts |= other.transcripts
        self.refused |= other.refused


@dataclass(slots=True)
class _Attempt:
    """The result of scoring the leaves of one message.

    refused: reasons why leaves can never be scored.
    failed: errors that may pass.
    missing: leaves that the store neither has nor refuses.
    """

    refused: list[str]
    failed: list[BaseException]
    missing: list[events_pb2.LeafFinished]


class LeafConsumer(WorkerLoop[Leaves]):
    """Scores leaves; of each run up to `concurrency` leaves, and one message more, at once."""

    def __init__(self, bus: Bus, store: Store, handler: LeafHandler, concurrency: int) -> None:
        intake = Intake(
            durable="verifier",
            subjects=[subjects.lineage("*", "leaf")],
            fetch=_FETCH,
            max_under_way=concurrency,
            batched=True,
        )
        super().__init__(bus, "leaves", intake)
        self._store, self._handler = store, handler
        self._together = _MOST_READ  # leaves of a read

    def decode(self, delivery: Delivery) -> Job[Leaves]:
        """Return the leaves of a message. Raise InvalidInput if it is malformed."""
        leaves = list(delivery.decode(events_pb2.LeavesFinished).leaves)
        for leaf in leaves:
            _check(leaf, delivery)
        if len(leaves) > subjects.MOST_LEAVES:  # no node of ours sends more
            most = subjects.MOST_LEAVES
            raise InvalidInput(f"a message names {len(leaves)} leaves; at most {most} are taken")
        if not leaves:
            raise InvalidInput("a message of leaves holds none")
        label = f"leaf {_short(leaves[0].leaf.segment)}"
        return Job(delivery=delivery, content=leaves, weight=len(leaves), label=label)

    async def process(self, jobs: Sequence[Job[Leaves]]) -> None:
        """Read the leaves of all jobs at once, then score and answer message by message."""
        try:
            answer = await self._read_all([leaf for job in jobs for leaf in job.content])
        except BanyanError as error:
            log.warning("cannot read the leaves of %d messages: %s", len(jobs), error)
            for job in jobs:
                await retry_later(job.delivery)
            return
        await asyncio.gather(*(self.safely(self._process_one(job, answer), [job]) for job in jobs))

    async def _read_all(self, leaves: Leaves) -> _Answer:
        """Read transcripts; the next answers are asked for fewer leaves where texts are long."""
        answer, start = _Answer(), 0
        while start < len(leaves):
            part = leaves[start : start + self._together]
            found = await self._read(part)
            answered = len(part) - found.unread
            start += answered
            self._together = answered if found.unread else min(_MOST_READ, 2 * self._together)
            answer.add(found)
        return answer

    async def _read(self, leaves: Leaves) -> _Answer:
        """Read transcripts; one by one where the store refuses the request as a whole."""
        try:
            transcripts, unread = await self._store.read_leaves(leaves, _READ_S)
        except PermanentError as error:
            if len(leaves) == 1:
                return _Answer(refused={_key(leaves[0]): str(error)})
        else:
            found = {_key_of(transcript): transcript for transcript in transcripts}
            return _Answer(transcripts=found, unread=unread)
        answer = _Answer()
        for leaf in leaves:  # one of them is to blame
            answer.add(await self._read([leaf]))
        return answer

    async def _process_one(self, job: Job[Leaves], answer: _Answer) -> None:
        """Score the leaves that the store has, and answer the message.

        If leaves are missing the message comes again, and is scored then for the scores still owed.
        """
        attempt = await self._score(job.content, answer)
        for error in attempt.failed:
            log_retry(job.label, error)
        try:
            missing = [leaf for leaf in attempt.missing if not await self._never_stored(leaf)]
            if missing and not attempt.failed and job.delivery.attempts >= MAX_ATTEMPTS:
                attempt.refused.append(_absence(missing[0]))
            elif missing or attempt.failed:
                await retry_later(job.delivery)
                return
        except BanyanError as error:
            log_retry(job.label, error)
            await retry_later(job.delivery)
            return
        if attempt.refused:
            await self.dead_letter(job.delivery, "; ".join(attempt.refused[:3]))
        else:
            await job.delivery.ack()

    async def _score(self, leaves: Leaves, answer: _Answer) -> _Attempt:
        keys = [_key(leaf) for leaf in leaves]
        stored = [answer.transcripts[key] for key in keys if key in answer.transcripts]
        results = await asyncio.gather(
            *(self._handler.score(transcript) for transcript in stored), return_exceptions=True
        )
        attempt = _Attempt(
            refused=[answer.refused[key] for key in keys if key in answer.refused],
            failed=[],
            missing=[leaf for leaf in leaves if not _answered(_key(leaf), answer)],
        )
        for result in results:
            if isinstance(result, PermanentError):
                attempt.refused.append(str(result))
            elif isinstance(result, BaseException):
                attempt.failed.append(result)
        return attempt

    async def _never_stored(self, leaf: events_pb2.LeafFinished) -> bool:
        """Return True if the store does not have a leaf and never will."""
        standing = await self._store.standing(leaf.tree_id)
        if standing is None or not (standing.over or standing.claim_epoch > leaf.claim_epoch):
            return False
        # The leaf may have been stored since the first read, before the next claim.
        transcripts, _ = await self._store.read_leaves([leaf], 0.0)
        if transcripts:
            return False
        log.info("leaf %s will never be stored: its claim is old", _short(leaf.leaf.segment))
        return True


def _check(leaf: events_pb2.LeafFinished, delivery: Delivery) -> None:
    """Raise InvalidInput unless the leaf's identities are well formed and of the subject's run."""
    sizes = len(leaf.tree_id), len(leaf.leaf.segment)
    if sizes != (_DIGEST_BYTES, _DIGEST_BYTES) or leaf.run_id != delivery.run_id:
        segment = _short(leaf.leaf.segment)
        raise InvalidInput(f"leaf {segment!r} of {leaf.run_id!r} on {delivery.subject}")


def _key(leaf: events_pb2.LeafFinished) -> Key:
    return leaf.tree_id, leaf.leaf.segment, leaf.leaf.end, leaf.claim_epoch


def _key_of(transcript: Transcript) -> Key:
    key = transcript.key
    return key.tree_id, key.leaf.segment, key.leaf.end, key.claim_epoch


def _answered(key: Key, answer: _Answer) -> bool:
    return key in answer.transcripts or key in answer.refused


def _absence(leaf: events_pb2.LeafFinished) -> str:
    return f"ABSENT: the store has no leaf {_short(leaf.leaf.segment)} of {_short(leaf.tree_id)}"


def _short(digest: bytes) -> str:
    return digest.hex()[:12]
