"""The loop of a run's learner: resume, replay, then batch after batch until the budget of steps is spent.

Level-triggered: the store says what is ready; events only say look again. A batch is committed before it is trained, so a
learner that dies in between trains it again from the store, in order (PROTOCOL 5).
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from banyan import registry
from banyan.errors import NotFound
from banyan.plugins import Estimator
from banyan.recipe import Recipe
from banyan.tree import Leaf, Tree
from banyan.v1 import events_pb2, tree_pb2
from services.chassis import telemetry
from services.learner import convert
from services.learner.batch import assemble
from services.learner.bench import Bench, Timed
from services.learner.checkpoint import Mark
from services.learner.credit import Stale
from services.learner.keeper import Keeper
from services.learner.ports import Store, StoredBatch, Trigger
from services.learner.staleness import History
from services.learner.study import Lesson, recorded_stale, study, summary
from services.learner.weights import WeightFolder

log = logging.getLogger(__name__)


@dataclass
class Position:
    """Where the learner stands: the policy in memory and the batch that comes next."""

    epoch: int = 0
    step: int = 0
    next_ordinal: int = 0
    digest: bytes = b""
    activity: str = "loading"
    history: History = field(default_factory=History)


class Learner:
    """Trains one run. `at` is read by the gRPC server."""

    def __init__(
        self,
        run_id: str,
        recipe: Recipe,
        held_out: frozenset[bytes],
        store: Store,
        trigger: Trigger,
        bench: Bench,
        weights: WeightFolder,
        keeper: Keeper,
        address: str = "",
        tick_s: float = 2.0,
    ) -> None:
        self.run_id, self.recipe, self.weights, self.keeper = run_id, recipe, weights, keeper
        self._held_out, self._store, self._trigger, self._bench = held_out, store, trigger, bench
        self._address, self._tick_s = address, tick_s
        optimise = recipe.optimise
        self.estimator: Estimator = registry.build("optimise", optimise.advantage, optimise.advantage_settings)
        self.at = Position()
        self._busy = asyncio.Lock()  # one of: a step, a checkpoint asked for

    async def work(self, resumed: Mark | None, stop: asyncio.Event) -> None:
        """Trains until the budget is spent or `stop` is set; writes the last checkpoint."""
        await self._take_over(resumed)
        while self.at.step < self.recipe.budget.steps and not stop.is_set():
            self.at.activity = "waiting"
            chosen = await self._next()
            if chosen is None:
                await self._pause(stop)
                continue
            async with self._busy:
                await self._advance(chosen, fresh=True)
                await self.keeper.consider(self._mark())
        await self.checkpoint()
        self.at.activity = "serving"

    async def _pause(self, stop: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(self._trigger.wait(self._tick_s)), asyncio.ensure_future(stop.wait())]
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    # -- resuming --

    async def _take_over(self, resumed: Mark | None) -> None:
        """Fences older learners, announces the checkpoint's policy or replays the batches after it."""
        self.at.step, self.at.next_ordinal = (resumed.step, resumed.next_ordinal) if resumed else (0, 0)
        name = f"{socket.gethostname()}-{os.getpid()}"
        self.at.epoch, stored_until = await self._store.take_epoch(name, self.at.step)
        stored = await self._store.policies()
        self.at.history.live = {p.published.policy.digest: p.published.policy.step for p in stored if not p.abandoned}
        gone = [p.published.policy for p in stored if p.abandoned]
        self.at.history.note_abandoned([(p.learner_epoch, p.step) for p in gone])
        self.keeper.begin(self.at.step)
        manifest = await self._bench.hand_out(self.weights, self.at.epoch, self.at.step)
        self._hold(manifest.digest)
        if stored_until == self.at.next_ordinal:
            same = [p.published for p in stored if p.published.policy.digest == manifest.digest]
            await self._announce(same[0] if same else None, {})
        else:
            await self._replay(stored_until, {(p.published.policy.step, p.published.policy.digest) for p in stored})
        self.weights.drop_foreign()
        log.info("run %s: learner epoch %d at step %d", self.run_id, self.at.epoch, self.at.step)

    async def _replay(self, until: int, known: set[tuple[int, bytes]]) -> None:
        """Trains the stored batches again, in order. A policy that is known already is announced only if it is the last."""
        log.info("run %s: replaying batches %d to %d", self.run_id, self.at.next_ordinal, until - 1)
        while self.at.next_ordinal < until:
            batch = await self._store.batch(self.at.next_ordinal)
            if batch is None:
                raise NotFound(
                    f"batch {self.at.next_ordinal} of run {self.run_id} is not in the store, though {until} were committed"
                )
            last = batch.ordinal == until - 1
            await self._advance(batch, fresh=False, known=frozenset() if last else frozenset(known))

    # -- one batch --

    async def _next(self) -> StoredBatch | None:
        size = self.recipe.control.groups_per_batch
        ready, oldest_open = await self._store.ready(2 * size)
        chosen = assemble(ready, oldest_open, size, self.recipe.deterministic)
        if chosen is None:
            return None
        trees = tuple(tree for group in chosen for tree in group.tree_ids)
        return StoredBatch(self.at.next_ordinal, tuple(g.group_id for g in chosen), trees, {})

    async def _advance(self, batch: StoredBatch, fresh: bool, known: frozenset[tuple[int, bytes]] = frozenset()) -> None:
        """Studies a batch, commits it if it is fresh, trains on it, hands the new policy out."""
        self.at.activity = "training"
        trees = await self._store.trees(batch.tree_ids)
        convert.refuse_untrainable(trees, self._held_out)
        links = [t.spec.traceparent for t in trees]
        with telemetry.span("learner.batch", links=links, banyan_run=self.run_id, banyan_batch=batch.ordinal) as span:
            begun = time.monotonic()
            lesson = await self._bench.run(lambda: self._study(trees, batch, fresh))
            if fresh:
                said = summary(lesson, self.at.step)
                await self._store.commit(batch.ordinal, self.at.epoch, batch.group_ids, said)
            self._note_consumed(trees, batch, span.traceparent)
            prepared = time.monotonic()
            with telemetry.span(
                "learner.step", span.traceparent, banyan_run=self.run_id, banyan_policy_step=self.at.step + 1
            ):
                timed = await self._bench.step(lesson.rows, self.at.step)
            metrics = self._metrics(lesson, timed) | {"prepare_seconds": prepared - begun}
            await self._publish(batch, timed, metrics, known)

    def _study(self, trees: Sequence[tree_pb2.Tree], batch: StoredBatch, fresh: bool) -> Lesson:
        groups = convert.by_group(trees, batch.group_ids)
        stale = self._too_old if fresh else _recorded(recorded_stale(batch.summary))
        return study(groups, self.estimator, stale, self.at.digest, self.recipe.optimise.tokens_per_row)

    def _too_old(self, tree: Tree, leaf: Leaf) -> bool:
        ages = (self.at.history.age(s, self.at.step) for s, _ in tree.pieces(leaf.segment, leaf.end))
        return max(ages, default=0) > self.recipe.control.max_staleness

    def _note_consumed(self, trees: Sequence[tree_pb2.Tree], batch: StoredBatch, batch_trace: str) -> None:
        for tree in trees:
            span = telemetry.start("learner.consume", tree.spec.traceparent, [batch_trace])
            span.set(banyan_run=self.run_id, banyan_tree=tree.spec.tree_id.hex(), banyan_batch=batch.ordinal)
            span.set(banyan_policy_step=self.at.step + 1)
            span.end()

    def _metrics(self, lesson: Lesson, timed: Timed) -> dict[str, float]:
        report = timed.report
        if not report.finite:
            log.error(
                "run %s: step %d has a loss or gradient that is not finite; the weights stay", self.run_id, self.at.step + 1
            )
        telemetry.observe("banyan.step.duration", timed.seconds)
        telemetry.observe("banyan.step.reward", lesson.metrics["reward"])
        telemetry.observe("banyan.step.mismatch_kl", report.mismatch_kl)
        numbers = {name: float(getattr(report, name)) for name in _REPORTED}
        return lesson.metrics | numbers | {"not_finite": float(not report.finite), "train_seconds": timed.seconds}

    async def _publish(
        self, batch: StoredBatch, timed: Timed, metrics: dict[str, float], known: frozenset[tuple[int, bytes]]
    ) -> None:
        begun = time.monotonic()
        parent = self.at.digest
        self.at.step, self.at.next_ordinal = self.at.step + 1, batch.ordinal + 1
        if timed.report.applied:
            manifest = await self._bench.hand_out(self.weights, self.at.epoch, self.at.step)
        else:
            manifest = self.weights.repeat(self.at.epoch, self.at.step)
        self._hold(manifest.digest)
        if (self.at.step, manifest.digest) not in known:
            made = events_pb2.PolicyPublished(parent_digest=parent, batch_ordinal=batch.ordinal)
            await self._announce(made, metrics | {"publish_seconds": time.monotonic() - begun})

    def _hold(self, digest: bytes) -> None:
        self.at.digest = digest
        self.at.history.live[digest] = self.at.step

    async def _announce(self, origin: events_pb2.PolicyPublished | None, metrics: dict[str, float]) -> None:
        """Puts the policy in memory into the store; its event follows from there."""
        manifest = self.weights.find(self.at.digest)
        policy = tree_pb2.PolicyRef(learner_epoch=self.at.epoch, step=self.at.step, digest=self.at.digest)
        said = events_pb2.PolicyPublished(
            run_id=self.run_id,
            policy=policy,
            path=str(self.weights.folder.resolve()),
            address=self._address,
            bytes=manifest.bytes,
            metrics=metrics,
        )
        if origin is not None:
            said.parent_digest = origin.parent_digest
            if origin.HasField("batch_ordinal"):
                said.batch_ordinal = origin.batch_ordinal
        await self._store.put_policy(said)
        telemetry.count("banyan.weights.bytes", manifest.bytes)

    # -- checkpoints --

    def _mark(self) -> Mark:
        return Mark(self.run_id, self.at.epoch, self.at.step, self.at.next_ordinal, self.at.digest.hex())

    async def checkpoint(self) -> str:
        """Writes a checkpoint of the policy in memory; its folder."""
        async with self._busy:
            before, self.at.activity = self.at.activity, "checkpointing"
            path = await self.keeper.keep(self._mark())
            self.at.activity = before
            return str(path)


_REPORTED = ("loss", "grad_norm", "mismatch_kl", "entropy", "clip_fraction", "foreign_fraction", "learning_rate", "applied")


def _recorded(leaves: frozenset[Leaf]) -> Stale:
    return lambda _tree, leaf: leaf in leaves
