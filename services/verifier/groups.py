"""The durable consumer `verifier-groups`: when a tree's growth has ended, scores its whole group, if it was the last.

Events only say when to look. The store says whether the group is whole, which leaves it has and which lack a score; so a
group is scored once, and by whoever comes after a crash again, with the same scores under the same ids.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from banyan.errors import BanyanError, InvalidInput, PermanentError
from banyan.v1 import events_pb2, tree_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.consumer import Consumer
from services.chassis.messaging.delivery import Delivery
from services.chassis.process import telemetry
from services.chassis.rpc.health import Pulse
from services.verifier.consumer import MOST_PENDING
from services.verifier.handlers import exception, message_id, said
from services.verifier.ports import Publisher, Store, Transcript
from services.verifier.sandbox.pool import Verdict
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring
from services.verifier.share import again_s
from services.verifier.store import row_of

log = logging.getLogger(__name__)

DURABLE = "verifier-groups"
_FETCH_S = 1.0
_READ_S = 2.0  # how long the store may wait for an end that it is about to ingest
_ACK_WAIT_S = 5.0  # when groups that a killed verifier had taken come again
_PROGRESS_S = 1.5  # less than a third of it
_DRAIN_S = 10.0
_TAKE_S = 120.0
_MOST = 16  # messages, and groups, of a run at once: each group is all the texts of its leaves
_MOST_ATTEMPTS = 48  # about twenty minutes


@dataclass(frozen=True, slots=True)
class GrowthEnd:
    """The end of a tree's growth; epoch 0 for one that was dropped."""

    tree_id: bytes
    claim_epoch: int


class GroupHandler:
    """Scores whole groups."""

    def __init__(
        self, store: Store, publisher: Publisher, scoring: Scoring, verifier_id: str
    ) -> None:
        self._store, self._publisher, self._scoring, self._id = (
            store,
            publisher,
            scoring,
            verifier_id,
        )
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def handle(self, run_id: str, ends: Sequence[GrowthEnd]) -> bool:
        """Whether ends are done with: every score that a whole group owes is with the broker, or it is not whole yet."""
        try:
            specs = await self._store.scorers(run_id)
        except InvalidInput:
            specs = {}  # an unreadable recipe is said of each leaf
        if specs and not any(spec.group for spec in specs.values()):
            return True
        settled, wait_s, seen = True, _READ_S, set[bytes]()
        room = self._room(run_id)
        scoring: list[asyncio.Task[None]] = []
        wrong: list[BaseException | None] = []
        try:
            for end in ends:
                if end.tree_id in seen:  # its group is scored already: its trees ended together
                    continue
                try:
                    group = await self._store.read_group(end.tree_id, end.claim_epoch, wait_s)
                except PermanentError as error:
                    wrong.append(error)
                    continue
                if not group.settled:  # the others are not to wait for it
                    settled, wait_s = False, 0.0
                elif (
                    group.transcripts and group.transcripts[0].run_id == run_id
                ):  # a node may name any tree
                    seen |= {leaf.key.tree_id for leaf in group.transcripts}
                    await room.acquire()
                    scoring.append(asyncio.create_task(self._score(specs, group.transcripts, room)))
        finally:
            wrong += await asyncio.gather(*scoring, return_exceptions=True)
        _raise(wrong, settled)
        return settled

    def _room(self, run_id: str) -> asyncio.Semaphore:
        """The room for groups of one run, so that none waits for the slow scorers of another. Kept while it is in use."""
        return self._rooms.setdefault(run_id, asyncio.Semaphore(_MOST))

    async def _score(
        self, specs: Mapping[str, ScorerSpec], leaves: Sequence[Transcript], room: asyncio.Semaphore
    ) -> None:
        try:
            names = sorted({name for transcript in leaves for name in transcript.scorers})
            await asyncio.gather(*(self._one(name, specs, leaves) for name in names))
        finally:
            room.release()

    async def _one(
        self, name: str, specs: Mapping[str, ScorerSpec], leaves: Sequence[Transcript]
    ) -> None:
        first = leaves[0]
        context = {"banyan_run": first.run_id, "banyan_tree": first.key.tree_id.hex()}
        with telemetry.span("verifier.score", first.traceparent, banyan_scorer=name, **context):
            began = time.monotonic()
            verdicts = await self._verdicts(name, specs, leaves)
            each = 1000 * (time.monotonic() - began) / len(leaves)
            owed = [
                (leaf, v) for leaf, v in zip(leaves, verdicts, strict=True) if name in leaf.scorers
            ]
            await asyncio.gather(
                *(self._publish(leaf, name, verdict, each) for leaf, verdict in owed)
            )

    async def _verdicts(
        self, name: str, specs: Mapping[str, ScorerSpec], leaves: Sequence[Transcript]
    ) -> list[Verdict]:
        try:
            if name not in specs:
                raise InvalidInput(
                    f"the stored recipe of run {leaves[0].run_id} has no scorer {name!r}, or is not one"
                )
            texts, row = [leaf.completion for leaf in leaves], row_of(leaves[0])
            return await self._scoring.score_group(specs[name], texts, row, run_id=leaves[0].run_id)
        except InvalidInput as error:
            return [exception(error)] * len(leaves)

    async def _publish(self, leaf: Transcript, name: str, verdict: Verdict, took_ms: float) -> None:
        event = said(leaf, name, verdict, self._id, took_ms)
        await self._publisher.publish(event, message_id(event), leaf.traceparent)


class GroupConsumer:
    """Takes ends of growth; of each run up to `_MOST` messages are under way at once, and the rest comes again."""

    def __init__(self, bus: Bus, handler: GroupHandler) -> None:
        self._bus, self._handler = bus, handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: Counter[str] = Counter()
        self.pulse = Pulse("groups")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then what is under way is finished, up to a deadline, and the rest comes again."""
        filters = [subjects.lineage("*", "grown"), subjects.lineage("*", "closed")]
        consumer = await self._bus.consumer(
            subjects.LINEAGE, DURABLE, filters, ack_wait_s=_ACK_WAIT_S, max_ack_pending=MOST_PENDING
        )
        try:
            while not stop.is_set():
                self.pulse.beat("taking messages", _TAKE_S)
                await self._take(consumer)
            self.pulse.rest()
            await consumer.close()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_DRAIN_S)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _take(self, consumer: Consumer) -> None:
        for delivery in await consumer.fetch(_MOST, _FETCH_S):
            run_id = delivery.run_id
            if self._under_way[run_id] >= _MOST:
                await delivery.nak(again_s(delivery.attempts))
                continue
            self._under_way[run_id] += 1
            task = asyncio.create_task(self._one(delivery))
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, run_id))

    def _done(self, run_id: str, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._under_way[run_id] -= 1
        if not self._under_way[run_id]:
            del self._under_way[run_id]

    async def _one(self, delivery: Delivery) -> None:
        beat = asyncio.create_task(_keep(delivery))
        try:
            ends = _ends(delivery)
            done = not ends or await self._handler.handle(delivery.run_id, ends)
            if (
                done or delivery.attempts >= _MOST_ATTEMPTS
            ):  # the store's deadline gives up what nobody can score
                await delivery.ack()
            else:
                await _later(delivery)
        except PermanentError as error:
            await self._bus.dead_letter(subjects.LINEAGE, delivery, str(error), "verifier")
        except BanyanError as error:
            log.warning("a group comes again: %s", error)
            await _later(delivery)
        except Exception:
            log.exception(
                "a group comes again after an unexpected error"
            )  # a mistake in the program; shows where
            await _later(delivery)
        finally:
            beat.cancel()


def _raise(found: Sequence[BaseException | None], settled: bool) -> None:
    """What may pass by itself before what will not, and that once nothing else is waited for: it ends the message."""
    for error in found:
        if error is not None and not isinstance(error, PermanentError):
            raise error
    for error in found:
        if error is not None and settled:
            raise error


def _ends(delivery: Delivery) -> list[GrowthEnd]:
    """What ended. Not what ends no wait: a closed tree was grown before. Raises InvalidInput."""
    if delivery.subject.endswith(".grown"):
        trees = delivery.decode(events_pb2.TreesGrown).trees
        if len(trees) > subjects.MOST_TREES:  # who says more is no node of ours
            most = subjects.MOST_TREES
            raise InvalidInput(
                f"a message on {delivery.subject} names {len(trees)} trees; at most {most} are taken"
            )
        return [GrowthEnd(grown.tree_id, grown.claim_epoch) for grown in trees]
    closed = delivery.decode(events_pb2.TreesClosed).trees
    return [
        GrowthEnd(tree.tree_id, 0) for tree in closed if tree.state == tree_pb2.TREE_STATE_DROPPED
    ]


async def _later(delivery: Delivery) -> None:
    await delivery.nak(min(0.25 * 2 ** min(delivery.attempts, 8), 30.0))


async def _keep(delivery: Delivery) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_PROGRESS_S)
            await delivery.in_progress()
