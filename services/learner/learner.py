"""The loop of a run's learner: resume, replay, then batch after batch until the budget of steps is spent.

Level-triggered: the store says what is ready; events only say look again. A batch is committed before it is trained, so a
learner that dies in between trains it again from the store, in order (PROTOCOL 5).
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from banyan import registry
from banyan.errors import NotFound, TemporaryError
from banyan.plugins import Estimator
from banyan.reasons import Reason
from banyan.recipe import Recipe
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from services.chassis.process import telemetry
from services.learner import step_report
from services.learner.announcer import Announcer
from services.learner.batch_attempt import IN_A_ROW, UNSTUDIED, Attempt, refuse_all_aside
from services.learner.checkpoints.checkpoint import Mark
from services.learner.data import from_store, replay
from services.learner.data import metrics as sampling
from services.learner.data.credit import Credit, ScoredTree
from services.learner.data.prepare import Lesson, credited, recorded_stale, study, summary
from services.learner.data.selection import assemble
from services.learner.packing.packing import PackedSequence
from services.learner.ports import Store, StoredBatch, Trigger
from services.learner.position import Position
from services.learner.training import divergence, drift
from services.learner.training.checkpointer import Checkpointer
from services.learner.training.trainer_thread import Timed, TorchThread
from services.learner.weights.folder import WeightFolder
from services.learner.weights.object_store import Outlet

log = logging.getLogger(__name__)

Note = Callable[[int, Mapping[str, float]], None]  # step, its metrics; returns at once
Metrics = dict[str, float]
Known = frozenset[tuple[int, bytes]]  # (step, digest) of policies that need no announcing


class Learner:
    """Trains one run. `at` is read by the gRPC server."""

    def __init__(
        self,
        run_id: str,
        recipe: Recipe,
        held_out: frozenset[bytes],
        store: Store,
        trigger: Trigger,
        torch_thread: TorchThread,
        weights: WeightFolder,
        keeper: Checkpointer,
        address: str = "",
        tick_s: float = 2.0,
        outlet: Outlet | None = None,
    ) -> None:
        self.run_id, self.recipe, self.weights, self.keeper = run_id, recipe, weights, keeper
        self._held_out, self._store, self._trigger, self._torch = held_out, store, trigger, torch_thread
        self._announcer, self._tick_s = Announcer(run_id, store, weights, address, outlet), tick_s
        self.note: Note = lambda _step, _metrics: None  # who else is told of a step
        optimise = recipe.optimise
        self.estimator: Estimator = registry.build("optimise", optimise.advantage, optimise.advantage_settings)
        self.at = Position()
        self._not_finite = 0  # steps in a row
        self._probe: list[PackedSequence] | None = None  # of the first batch; read when first needed
        self._busy = asyncio.Lock()  # one of: a step, a checkpoint asked for
        self._taken_over = False  # the policy in memory is the run's newest

    async def work(self, resumed: Mark | None, stop: asyncio.Event) -> None:
        """Trains until the budget is spent or `stop` is set; writes the last checkpoint."""
        await self._take_over(resumed, stop)
        while self.at.step < self.recipe.budget.steps and not stop.is_set():
            self.at.activity = "waiting"
            self._trigger.clear()  # before the look, so that what comes during it is not lost
            chosen = await self._next()
            if chosen is None:
                await self._pause(stop)
                continue
            async with self._busy:
                await self._advance(chosen, fresh=True)
                await self.keeper.consider(self.at.mark(self.run_id))
            if self._not_finite >= self.recipe.optimise.max_not_finite:
                await self._keep()
            self._refuse_stuck()
        await self._keep()
        self.at.activity = "serving"

    async def checkpoint(self) -> str:
        """Writes a checkpoint of the policy in memory; its folder. Raises TemporaryError while that is not the newest."""
        if not self._taken_over:
            where = f"replaying batch {self.at.next_ordinal}" if self.at.epoch else "starting"
            raise TemporaryError(f"the learner of run {self.run_id} is {where}; ask again", reason=Reason.TAKING_OVER)
        # Its writer reads the weights in use: once begun it is finished, whether or not anybody waits for the answer.
        return await asyncio.shield(asyncio.create_task(self._keep()))

    async def _keep(self) -> str:
        async with self._busy:
            before, self.at.activity = self.at.activity, "checkpointing"
            try:
                return str(await self.keeper.keep(self.at.mark(self.run_id)))
            finally:
                self.at.activity = before

    async def _pause(self, stop: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(self._trigger.wait(self._tick_s)), asyncio.ensure_future(stop.wait())]
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    # -- resuming --

    async def _take_over(self, resumed: Mark | None, stop: asyncio.Event) -> None:
        """Fences older learners; announces the checkpoint's policy, or replays the batches after it."""
        at = self.at
        at.step, at.next_ordinal = (resumed.step, resumed.next_ordinal) if resumed else (0, 0)
        at.epoch, until = await self._store.take_epoch(f"{socket.gethostname()}-{os.getpid()}", at.step)
        stored = [(p.published, p.abandoned) for p in await self._store.policies()]
        at.history.live = {p.policy.digest: p.policy.step for p, gone in stored if not gone}
        at.history.note_abandoned([(p.policy.learner_epoch, p.policy.step) for p, gone in stored if gone])
        for policy, _ in stored:
            if policy.metrics:  # of which a logger that was killed may not know yet
                self.note(policy.policy.step, policy.metrics)
        live = [(policy.policy.step, policy.metrics) for policy, gone in stored if not gone]
        self._not_finite = divergence.trailing(live, at.step)
        self._refuse_stuck()
        self.keeper.begin(at.step)
        at.hold((await self._torch.hand_out(self.weights, at.epoch, at.step)).digest)
        if until == at.next_ordinal:
            same = [p for p, _ in stored if p.policy.digest == at.digest and p.policy.step == at.step]
            await self._announcer.again(at, same[0] if same else None)
        else:
            await self._replay(until, frozenset((p.policy.step, p.policy.digest) for p, _ in stored), stop)
        self._taken_over = self.at.next_ordinal == until
        await self._announcer.settle()
        log.info("run %s: learner epoch %d at step %d", self.run_id, at.epoch, at.step)

    async def _replay(self, until: int, known: Known, stop: asyncio.Event) -> None:
        """Trains the stored batches again, in order. A policy that is known already is put quietly, but for the last."""
        log.info("run %s: replaying batches %d to %d", self.run_id, self.at.next_ordinal, until - 1)
        while self.at.next_ordinal < until and not stop.is_set():
            ordinal = self.at.next_ordinal
            batch = await self._store.batch(ordinal)
            if batch is None:
                raise NotFound(f"batch {ordinal} of run {self.run_id} is not in the store, though {until} were committed")
            quiet = frozenset() if ordinal == until - 1 else known
            if batch.set_aside:
                await self._pass_over(batch, quiet)
            else:
                await self._advance(batch, fresh=False, known=quiet)
            self._refuse_stuck()

    def _refuse_stuck(self) -> None:
        """Ends a run in which nothing is learned any more. Raises InvalidInput."""
        divergence.refuse(self._not_finite, self.recipe.optimise.max_not_finite, self.at.step)

    async def _pass_over(self, batch: StoredBatch, known: Known) -> None:
        """Goes on behind a batch that is set aside: its policy has the weights of the one before."""
        log.error("run %s: batch %d is set aside: %s", self.run_id, batch.ordinal, batch.set_aside)
        first = max(0, batch.ordinal - IN_A_ROW + 1)
        refuse_all_aside([*[await self._store.batch(n) for n in range(first, batch.ordinal)], batch])
        await self._put_out(batch, False, {"applied": 0.0, "not_finite": 0.0}, known)

    # -- one batch --

    async def _next(self) -> StoredBatch | None:
        size = self.recipe.control.groups_per_batch
        ready, oldest_open = await self._store.ready(2 * size)
        chosen = assemble(ready, oldest_open, size, self.recipe.deterministic)
        if chosen is None:
            return None
        trees = tuple(tree for group in chosen for tree in group.tree_ids)
        return StoredBatch(self.at.next_ordinal, tuple(g.group_id for g in chosen), trees, {})

    async def _advance(self, batch: StoredBatch, fresh: bool, known: Known = frozenset()) -> None:
        """Studies a batch, commits it if it is fresh, trains on it, hands the new policy out."""
        self.at.activity = "training"
        trees = await self._store.trees(batch.tree_ids)
        attempt = Attempt(self._store, batch, self.at.epoch, committed=not fresh)
        async with attempt:
            timed, metrics = await self._train(batch, trees, attempt)
        self._not_finite = divergence.after(self._not_finite, metrics)
        await self._put_out(batch, timed.report.applied, metrics, known)

    async def _train(self, batch: StoredBatch, trees: Sequence[tree_pb2.Tree], attempt: Attempt) -> tuple[Timed, Metrics]:
        """Studies a batch, commits it if it is fresh, takes its step."""
        begun, fresh = time.monotonic(), not attempt.committed
        batch = await self._replaying(batch, trees) if fresh else batch
        again = await self._store.trees(list(dict.fromkeys(one.tree_id for one in batch.replayed)))
        from_store.refuse_untrainable([*trees, *again], self._held_out)
        links = [t.spec.traceparent for t in trees]
        with telemetry.span("learner.batch", links=links, banyan_run=self.run_id, banyan_batch=batch.ordinal) as span:
            lesson = await self._torch.run(lambda: self._surveyed(self._study(trees, again, batch, fresh), batch))
            if fresh:
                said = summary(lesson, self.at.step)
                await self._store.commit(batch.ordinal, self.at.epoch, batch.group_ids, said, batch.replayed)
                attempt.committed = True
            step_report.note_consumed([*trees, *again], batch.ordinal, self.at.step + 1, span.traceparent)
            prepared = time.monotonic() - begun
            with telemetry.span("learner.step", span.traceparent, banyan_run=self.run_id, banyan_batch=batch.ordinal):
                timed = await self._torch.step(lesson.sequences, self.at.step, lesson.sizes)
            metrics = step_report.numbers(lesson, timed, self.at.step + 1) | {"prepare_seconds": prepared}
            metrics |= await self._drift(self.at.step + 1, timed.report.learning_rate)
            return timed, metrics

    async def _drift(self, step: int, rate: float) -> dict[str, float]:
        """Measure how far the run has gone from its start, at the steps where that is due."""
        if not drift.due(step, self.recipe.budget.steps):
            return {}
        if self._probe is None:
            self._probe = await self._first_paths()
        found = await self._torch.drift(self._probe)
        whole = found.pop("whole_rate", 0.0)
        return found | ({"relative_rate": rate / whole} if whole else {})

    async def _first_paths(self) -> list[PackedSequence]:
        """Read what the model that the run began with sampled; nothing where the store has it no more."""
        first = await self._store.batch(0)
        trees = await self._store.trees(first.tree_ids[: drift.TREES]) if first and not first.set_aside else []
        budget = self._torch.trainer.budget
        return await self._torch.run(lambda: drift.probe([from_store.scored_tree(tree) for tree in trees], budget))

    async def _replaying(self, batch: StoredBatch, trees: Sequence[tree_pb2.Tree]) -> StoredBatch:
        """A fresh batch with what it trains on again. The store answers from earlier batches alone."""
        if self.recipe.replay is None:
            return batch
        rows = {tree.spec.group_id: tree.spec.row_digest for tree in trees}
        groups = from_store.by_group(trees, batch.group_ids)
        request = replay.request(
            self.recipe.replay,
            seed=self.recipe.seed,
            batch=batch.ordinal,
            fresh=groups,
            row_digests=rows,
            stale=self._too_old,
        )
        return replace(batch, replayed=await self._store.replays(request))

    def _study(
        self, trees: Sequence[tree_pb2.Tree], again: Sequence[tree_pb2.Tree], batch: StoredBatch, fresh: bool
    ) -> Lesson:
        members = from_store.by_group(trees, batch.group_ids)
        recorded = recorded_stale(batch.summary)
        stale = self._too_old if fresh or UNSTUDIED in batch.summary else lambda _tree, leaf: leaf in recorded
        stored = {tree.spec.tree_id: from_store.scored_tree(tree) for tree in again}
        groups = replay.joined(members, batch.replayed, stored, stale)
        teaches = self.recipe.optimise.head is not None
        seen = from_store.leaf_observations(trees, [one for _, grown in members for one in grown]) if teaches else {}
        trainer = self._torch.trainer
        groups = self._priced(groups)
        optimise = self.recipe.optimise
        return study(
            groups,
            self.estimator,
            stale,
            self.at.digest,
            trainer.budget,
            observations=seen,
            targets=trainer.loss.targets,
            minibatches=optimise.minibatches,
            pack=self._torch.pack,
            entropy_quantile=optimise.entropy_quantile,
        )

    def _priced(self, groups: replay.Groups) -> list[tuple[str, list[ScoredTree]]]:
        """The groups with the rewards that advantages are estimated from: less the KL where the recipe says so."""
        return [(name, [self._torch.trainer.priced(one) for one in members]) for name, members in groups]

    async def credited(self, groups: replay.Groups, estimator: Estimator | None) -> list[Credit]:
        """The advantages of groups as a step would have them, though of leaves of any age; by another estimator than the
        run's where one is given. In the torch thread, between steps: the reference policy may be asked."""
        chosen, quantile = estimator or self.estimator, self.recipe.optimise.entropy_quantile
        return await self._torch.run(lambda: credited(self._priced(groups), chosen, lambda _tree, _leaf: False, quantile))

    def _surveyed(self, lesson: Lesson, batch: StoredBatch) -> Lesson:
        said = sampling.of_batch(
            lesson.credits,
            age=lambda segment: self.at.history.age(segment, self.at.step),
            replayed={one.tree_id for one in batch.replayed},
        )
        return replace(lesson, metrics=lesson.metrics | said)

    def _too_old(self, tree: Tree, leaf: Leaf) -> bool:
        return self.at.history.age_of_path(tree, leaf, self.at.step) > self.recipe.control.max_staleness

    async def _put_out(self, batch: StoredBatch, applied: bool, metrics: Metrics, known: Known) -> None:
        at, parent, begun = self.at, self.at.digest, time.monotonic()
        at.step, at.next_ordinal = at.step + 1, batch.ordinal + 1
        if applied:
            manifest = await self._torch.hand_out(self.weights, at.epoch, at.step)
        else:
            manifest = self.weights.repeat(at.epoch, at.step)
        at.hold(manifest.digest)
        metrics |= {"publish_seconds": time.monotonic() - begun}
        replayed = (at.step, manifest.digest) in known
        metrics |= await self._announcer.announce(at, parent, batch.ordinal, metrics, replayed)
        self.note(at.step, metrics)
