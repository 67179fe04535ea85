"""The durable consumer `verifier-groups`: score a group once the growth of its last tree has ended.

Events are triggers. The store decides whether a group is complete, which leaves it has and which of
them lack a score; so a group is scored once, and after a crash again with the same scores under the
same ids.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from banyan.errors import BanyanError, InvalidInput, PermanentError
from banyan.v1 import events_pb2, tree_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.delivery import Delivery
from services.chassis.process import telemetry
from services.verifier.ports import Publisher, Store, Transcript
from services.verifier.sandbox.lane import Verdict
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.score_events import leaf_scored, message_id
from services.verifier.scoring import Scoring, exception_verdict
from services.verifier.store import row_of
from services.verifier.worker_loop import (
    MAX_ATTEMPTS,
    Intake,
    Job,
    WorkerLoop,
    log_retry,
    retry_later,
)

DURABLE = "verifier-groups"
_READ_S = 2.0  # that the store may wait for an end of growth that it is about to ingest
_MAX_UNDER_WAY = 16  # messages, and groups, of a run at once: a group is all texts of its leaves


@dataclass(frozen=True, slots=True)
class GrowthEnd:
    """The end of a tree's growth.

    claim_epoch: claim under which it grew; 0 for a dropped tree.
    """

    tree_id: bytes
    claim_epoch: int


GrowthEnds = Sequence[GrowthEnd]


class GroupHandler:
    """Scores whole groups."""

    def __init__(
        self, store: Store, publisher: Publisher, scoring: Scoring, verifier_id: str
    ) -> None:
        self._store, self._publisher, self._scoring = store, publisher, scoring
        self._verifier_id = verifier_id
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def handle(self, run_id: str, ends: GrowthEnds) -> bool:
        """Score the groups that these ends complete; return False if the store lacks an end.

        Return once the broker has acknowledged every score that a complete group owes. Raise the
        first error, one that may pass before a permanent one.
        """
        try:
            specs = await self._store.scorers(run_id)
        except InvalidInput:
            specs = {}  # the leaves of the group get the reason as their verdict
        if specs and not any(spec.group for spec in specs.values()):
            return True
        all_known, wait_s = True, _READ_S
        scored_trees: set[bytes] = set()
        errors: list[BaseException | None] = []
        scoring: list[asyncio.Task[None]] = []
        slots = self._slots_of(run_id)
        try:
            for end in ends:
                if end.tree_id in scored_trees:  # its group ended with another tree of this message
                    continue
                try:
                    group = await self._store.read_group(end.tree_id, end.claim_epoch, wait_s)
                except PermanentError as error:
                    errors.append(error)
                    continue
                if not group.settled:  # the other ends do not wait for this one
                    all_known, wait_s = False, 0.0
                elif group.transcripts and group.transcripts[0].run_id == run_id:
                    # Of another run otherwise: a node may name any tree.
                    scored_trees |= {leaf.key.tree_id for leaf in group.transcripts}
                    await slots.acquire()
                    leaves = group.transcripts
                    scoring.append(asyncio.create_task(self._score(specs, leaves, slots)))
        finally:
            errors += await asyncio.gather(*scoring, return_exceptions=True)
        _raise_first(errors, all_known=all_known)
        return all_known

    def _slots_of(self, run_id: str) -> asyncio.Semaphore:
        """Return the places for groups of a run: its slow scorers delay no other run."""
        return self._slots.setdefault(run_id, asyncio.Semaphore(_MAX_UNDER_WAY))

    async def _score(
        self,
        specs: Mapping[str, ScorerSpec],
        leaves: Sequence[Transcript],
        slots: asyncio.Semaphore,
    ) -> None:
        try:
            names = sorted({name for transcript in leaves for name in transcript.scorers})
            await asyncio.gather(*(self._score_with(name, specs, leaves) for name in names))
        finally:
            slots.release()

    async def _score_with(
        self, name: str, specs: Mapping[str, ScorerSpec], leaves: Sequence[Transcript]
    ) -> None:
        first = leaves[0]
        attributes = {
            "banyan_run": first.run_id,
            "banyan_tree": first.key.tree_id.hex(),
            "banyan_scorer": name,
        }
        with telemetry.span("verifier.score", first.traceparent, **attributes):
            began = time.monotonic()
            verdicts = await self._verdicts(name, specs, leaves)
            ms_per_leaf = 1000 * (time.monotonic() - began) / len(leaves)
            await asyncio.gather(
                *(
                    self._publish(leaf, name, verdict, ms_per_leaf)
                    for leaf, verdict in zip(leaves, verdicts, strict=True)
                    if name in leaf.scorers
                )
            )

    async def _verdicts(
        self, name: str, specs: Mapping[str, ScorerSpec], leaves: Sequence[Transcript]
    ) -> list[Verdict]:
        run_id = leaves[0].run_id
        try:
            if name not in specs:
                raise InvalidInput(
                    f"the stored recipe of run {run_id} has no scorer {name!r}, or is not one"
                )
            texts, row = [leaf.completion for leaf in leaves], row_of(leaves[0])
            turns = [leaf.turns for leaf in leaves]
            heads = [leaf.head if leaf.HasField("head") else None for leaf in leaves]
            return await self._scoring.score_group(
                specs[name], texts, row, run_id=run_id, turns=turns, heads=heads
            )
        except InvalidInput as error:
            return [exception_verdict(error)] * len(leaves)

    async def _publish(
        self, leaf: Transcript, name: str, verdict: Verdict, duration_ms: float
    ) -> None:
        event = leaf_scored(
            leaf, name, verdict, verifier_id=self._verifier_id, duration_ms=duration_ms
        )
        await self._publisher.publish(event, message_id(event), leaf.traceparent)


class GroupConsumer(WorkerLoop[GrowthEnds]):
    """Receives ends of growth and scores the groups that they complete."""

    def __init__(self, bus: Bus, handler: GroupHandler) -> None:
        intake = Intake(
            durable=DURABLE,
            subjects=[subjects.lineage("*", "grown"), subjects.lineage("*", "closed")],
            fetch=_MAX_UNDER_WAY,
            max_under_way=_MAX_UNDER_WAY,
            max_waiting=0,
        )
        super().__init__(bus, "groups", intake)
        self._handler = handler

    def decode(self, delivery: Delivery) -> Job[GrowthEnds] | None:
        """Return the ends of growth in a message, None without any. Raise InvalidInput."""
        ends = _ends(delivery)
        return Job(delivery=delivery, content=ends, weight=1, label="a group") if ends else None

    async def process(self, jobs: Sequence[Job[GrowthEnds]]) -> None:
        """Score the groups of each message and answer it."""
        for job in jobs:
            await self._process_one(job)

    async def _process_one(self, job: Job[GrowthEnds]) -> None:
        delivery = job.delivery
        try:
            done = await self._handler.handle(delivery.run_id, job.content)
        except PermanentError as error:
            await self.dead_letter(delivery, str(error))
        except BanyanError as error:
            log_retry(job.label, error)
            await retry_later(delivery)
        else:
            # The store's deadline for scores ends the wait for ends that never come.
            if done or delivery.attempts >= MAX_ATTEMPTS:
                await delivery.ack()
            else:
                await retry_later(delivery)


def _raise_first(errors: Sequence[BaseException | None], *, all_known: bool) -> None:
    """Raise the first error that may pass; without one, and if no end is missing, a permanent one.

    A permanent error ends the message, so it must not while anything in it is still awaited.
    """
    raised = [error for error in errors if error is not None]
    for error in raised:
        if not isinstance(error, PermanentError):
            raise error
    if raised and all_known:
        raise raised[0]


def _ends(delivery: Delivery) -> list[GrowthEnd]:
    """Return the ends of growth in a message. Raise InvalidInput.

    A tree that is closed but not dropped is left out: its growth ended before.
    """
    if delivery.subject.endswith(".grown"):
        trees = delivery.decode(events_pb2.TreesGrown).trees
        if len(trees) > subjects.MOST_TREES:  # no node of ours sends more
            raise InvalidInput(
                f"a message on {delivery.subject} names {len(trees)} trees;"
                f" at most {subjects.MOST_TREES} are taken"
            )
        return [GrowthEnd(grown.tree_id, grown.claim_epoch) for grown in trees]
    closed = delivery.decode(events_pb2.TreesClosed).trees
    return [
        GrowthEnd(tree.tree_id, 0) for tree in closed if tree.state == tree_pb2.TREE_STATE_DROPPED
    ]
