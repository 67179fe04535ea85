"""The loop of a run's learner: resume, replay, then batch after batch until the steps are spent.

It is level-triggered: the store says what is ready, events only wake the loop. A batch is committed
before it is trained, so a learner that dies in between trains it again from the store, in order
(docs/protocol.md, Commit before training).
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

from banyan.errors import NotFound, TemporaryError
from banyan.reasons import Reason
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2, tree_pb2
from services.chassis.process import telemetry
from services.learner import step_report
from services.learner.announcer import Announcer
from services.learner.batch_attempt import IN_A_ROW, Attempt, refuse_all_aside
from services.learner.batch_preparer import BatchPreparer
from services.learner.checkpoints.checkpoint import Mark
from services.learner.data.engine_load import EngineLoad, Loads
from services.learner.data.prepare import Lesson, summary
from services.learner.data.selection import assemble
from services.learner.drift_meter import DriftMeter
from services.learner.ports import Store, StoredBatch, Trigger
from services.learner.position import Position
from services.learner.training import divergence
from services.learner.training.checkpointer import Checkpointer
from services.learner.training.trainer_thread import Timed, TorchThread
from services.learner.weights.folder import WeightFolder
from services.learner.weights.outlet import Outlet

log = logging.getLogger(__name__)

OnStep = Callable[[int, Mapping[str, float]], None]  # (step, metrics); returns at once
OnBatch = Callable[[int, Lesson, Sequence[tree_pb2.Tree]], None]  # of a step; returns at once
Metrics = dict[str, float]
Known = frozenset[tuple[int, bytes]]  # (step, digest) of policies that need no announcing


class Learner:
    """Trains one run.

    `at` is read by the gRPC server. `on_step` is called with the metrics of each step, `on_batch`
    with what it trained on: the lesson, and the stored trees of the batch's own groups.
    """

    def __init__(
        self,
        run_id: str,
        recipe: Recipe,
        *,
        held_out: frozenset[bytes],
        store: Store,
        trigger: Trigger,
        torch_thread: TorchThread,
        weights: WeightFolder,
        checkpointer: Checkpointer,
        address: str = "",
        tick_s: float = 2.0,
        outlet: Outlet | None = None,
    ) -> None:
        self.run_id, self.recipe = run_id, recipe
        self.weights, self.checkpointer = weights, checkpointer
        self._step_trace = ""  # traceparent of the newest step
        self._store, self._trigger, self._torch = store, trigger, torch_thread
        self._tick_s = tick_s
        self.on_step: OnStep = lambda _step, _metrics: None
        self.on_batch: OnBatch = lambda _step, _lesson, _trees: None
        self.at = Position()
        self.preparer = BatchPreparer(recipe, held_out, store, torch_thread, self.at)
        self._announcer = Announcer(run_id, store, weights, address, outlet)
        self._drift = DriftMeter(store, torch_thread, recipe.budget.steps)
        self._engines = EngineLoad()
        self._not_finite = 0  # consecutive steps
        self._busy = asyncio.Lock()  # held by a step or by a requested checkpoint
        self._taken_over = False  # the policy in memory is the run's newest

    async def work(self, resumed: Mark | None, stop: asyncio.Event) -> None:
        """Train until the steps are spent or `stop` is set, then write the last checkpoint."""
        await self._take_over(resumed, stop)
        while self.at.step < self.recipe.budget.steps and not stop.is_set():
            self.at.activity = "waiting"
            self._trigger.clear()  # before the store is asked, so that no later event is lost
            chosen = await self._next_batch()
            if chosen is None:
                await self._pause(stop)
                continue
            async with self._busy:
                await self._advance(chosen, committed=False)
                await self.checkpointer.consider(self.at.mark(self.run_id), self._step_trace)
            if self._not_finite >= self.recipe.optimise.max_not_finite:
                await self._write_checkpoint()
            self._refuse_stuck()
        await self._write_checkpoint()
        self.at.activity = "serving"

    async def checkpoint(self) -> str:
        """Write a checkpoint of the policy in memory and return its folder.

        Raises TemporaryError while that policy is not the newest.
        """
        if not self._taken_over:
            state = f"training batch {self.at.next_ordinal} again" if self.at.epoch else "starting"
            raise TemporaryError(
                f"the learner of run {self.run_id} is {state}; ask again",
                reason=Reason.TAKING_OVER,
            )
        # Its writer reads the weights in use: once begun it is finished, even if its caller leaves.
        return await asyncio.shield(asyncio.create_task(self._write_checkpoint()))

    async def _write_checkpoint(self) -> str:
        async with self._busy:
            before, self.at.activity = self.at.activity, "checkpointing"
            try:
                return str(
                    await self.checkpointer.keep(self.at.mark(self.run_id), self._step_trace)
                )
            finally:
                self.at.activity = before

    async def _pause(self, stop: asyncio.Event) -> None:
        waits = [
            asyncio.ensure_future(self._trigger.wait(self._tick_s)),
            asyncio.ensure_future(stop.wait()),
        ]
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    # -- resuming --

    async def _take_over(self, resumed: Mark | None, stop: asyncio.Event) -> None:
        """Fence older learners; announce the checkpoint's policy or train the batches after it."""
        at = self.at
        if resumed is not None:
            at.step, at.next_ordinal = resumed.step, resumed.next_ordinal
        learner_id = f"{socket.gethostname()}-{os.getpid()}"
        at.epoch, until = await self._store.take_epoch(learner_id, at.step)
        stored = await self._store.policies()
        self._restore_history(stored)
        self._refuse_stuck()
        self.checkpointer.begin(at.step)
        at.set_weights((await self._torch.hand_out(self.weights, at.epoch, at.step)).digest)
        known = {  # reversed, so that the first announcement of a policy counts
            (p.published.policy.step, p.published.policy.digest): p.published
            for p in reversed(stored)
        }
        if until == at.next_ordinal:
            await self._announcer.announce_again(at, known.get((at.step, at.digest)))
        else:
            await self._retrain(until, frozenset(known), stop)
        self._taken_over = at.next_ordinal == until
        await self._announcer.drop_foreign()
        log.info("run %s: learner epoch %d at step %d", self.run_id, at.epoch, at.step)

    def _restore_history(self, stored: Sequence[runstore_service_pb2.StoredPolicy]) -> None:
        """Restore from the run's policies what this learner must know of earlier steps."""
        live = [p.published for p in stored if not p.abandoned]
        abandoned = [p.published.policy for p in stored if p.abandoned]
        history = self.at.history
        history.live = {p.policy.digest: p.policy.step for p in live}
        history.note_abandoned([(policy.learner_epoch, policy.step) for policy in abandoned])
        for policy in stored:
            published = policy.published
            if published.metrics:  # a logger that was killed may not have them yet
                self.on_step(published.policy.step, published.metrics)
        measured = [(p.policy.step, p.metrics) for p in live]
        self._not_finite = divergence.trailing(measured, self.at.step)

    async def _retrain(self, until: int, known: Known, stop: asyncio.Event) -> None:
        """Train the committed batches after the checkpoint again, in order.

        Policies that are known already are put without an event, except the last.
        """
        log.info(
            "run %s: training batches %d to %d again", self.run_id, self.at.next_ordinal, until - 1
        )
        while self.at.next_ordinal < until and not stop.is_set():
            ordinal = self.at.next_ordinal
            batch = await self._store.batch(ordinal)
            if batch is None:
                raise NotFound(
                    f"batch {ordinal} of run {self.run_id} is not in the store,"
                    f" though {until} were committed"
                )
            quiet = frozenset() if ordinal == until - 1 else known
            if batch.set_aside:
                await self._pass_over(batch, quiet)
            else:
                await self._advance(batch, committed=True, known=quiet)
            self._refuse_stuck()

    def _refuse_stuck(self) -> None:
        """Raise InvalidInput, which ends the run, once nothing is learned any more."""
        divergence.refuse(self._not_finite, self.recipe.optimise.max_not_finite, self.at.step)

    async def _pass_over(self, batch: StoredBatch, known: Known) -> None:
        """Skip a batch that is set aside: its policy has the weights of the one before."""
        log.error("run %s: batch %d is set aside: %s", self.run_id, batch.ordinal, batch.set_aside)
        first = max(0, batch.ordinal - IN_A_ROW + 1)
        earlier = [await self._store.batch(ordinal) for ordinal in range(first, batch.ordinal)]
        refuse_all_aside([*earlier, batch])
        unchanged = {"applied": 0.0, "not_finite": 0.0}
        await self._publish(batch, applied=False, metrics=unchanged, known=known)

    # -- one batch --

    async def _next_batch(self) -> StoredBatch | None:
        size = self.recipe.control.groups_per_batch
        ready, oldest_open = await self._store.ready(2 * size)
        chosen = assemble(ready, oldest_open, size, self.recipe.deterministic)
        if chosen is None:
            return None
        return StoredBatch(
            ordinal=self.at.next_ordinal,
            group_ids=tuple(group.group_id for group in chosen),
            tree_ids=tuple(tree_id for group in chosen for tree_id in group.tree_ids),
            summary={},
        )

    async def _advance(
        self, batch: StoredBatch, committed: bool, known: Known = frozenset()
    ) -> None:
        """Prepare a batch, commit it unless it is, train on it, publish the new policy."""
        self.at.activity = "training"
        messages = await self._store.trees(batch.tree_ids)
        async with Attempt(self._store, batch, self.at.epoch, committed) as attempt:
            timed, metrics = await self._train(batch, messages, attempt)
        self._not_finite = divergence.after(self._not_finite, metrics)
        await self._publish(batch, applied=timed.report.applied, metrics=metrics, known=known)

    async def _train(
        self, batch: StoredBatch, messages: Sequence[tree_pb2.Tree], attempt: Attempt
    ) -> tuple[Timed, Metrics]:
        """Prepare a batch, commit it unless it is, take its step."""
        begun, step = time.monotonic(), self.at.step
        fetched = await self.preparer.fetch(batch, messages, attempt.committed)
        batch = fetched.batch
        attributes: dict[str, Any] = {"banyan_run": self.run_id, "banyan_batch": batch.ordinal}
        links = [tree.spec.traceparent for tree in messages]
        with telemetry.span("learner.batch", links=links, **attributes) as span:
            lesson = await self.preparer.prepare(fetched, attempt.committed)
            if not attempt.committed:
                await self._store.commit(
                    batch.ordinal,
                    self.at.epoch,
                    batch.group_ids,
                    summary(lesson, step),
                    batch.replayed,
                )
                attempt.committed = True
            step_report.trace_consumed(
                fetched.messages, batch.ordinal, step + 1, batch_trace=span.traceparent
            )
            prepare_seconds = time.monotonic() - begun
            with telemetry.span("learner.step", span.traceparent, **attributes) as taken:
                self._step_trace = taken.traceparent
                async with _beside(self._store.engine_loads()) as loads:
                    timed = await self._torch.step(lesson, step)
            metrics = step_report.numbers(lesson, timed, step + 1)
            metrics["prepare_seconds"] = prepare_seconds
            metrics |= self._engines.since(await loads)
            metrics |= await self._drift.measure(step + 1, timed.report.learning_rate)
            self.on_batch(step + 1, lesson, fetched.decoded.messages)
            return timed, metrics

    async def _publish(
        self, batch: StoredBatch, *, applied: bool, metrics: Metrics, known: Known
    ) -> None:
        """Write the weights of the policy that a batch made, and announce it."""
        at, parent, begun = self.at, self.at.digest, time.monotonic()
        at.step, at.next_ordinal = at.step + 1, batch.ordinal + 1
        if applied:
            manifest = await self._torch.hand_out(self.weights, at.epoch, at.step)
        else:
            manifest = self.weights.repeat(at.epoch, at.step)
        at.set_weights(manifest.digest)
        metrics |= {"publish_seconds": time.monotonic() - begun}
        already_announced = (at.step, manifest.digest) in known
        metrics |= await self._announcer.announce(
            at,
            parent,
            batch.ordinal,
            metrics=metrics,
            already_announced=already_announced,
            traceparent=self._step_trace,
        )
        self.on_step(at.step, metrics)


@contextlib.asynccontextmanager
async def _beside(asked: Coroutine[Any, Any, Loads]) -> AsyncIterator[asyncio.Task[Loads]]:
    """Yield a task that runs beside the block, and ends with it if that fails."""
    task = asyncio.create_task(asked)
    try:
        yield task
    except BaseException:  # raised again, once the task has ended
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
