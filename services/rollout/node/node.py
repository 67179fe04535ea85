"""A rollout node: it claims trees, grows them on one engine, and publishes what ends.

The node is level-triggered: events and ticks only make its loops look at the state of its trees
again. The loops decide nothing about a tree (growth/grower.py) or a policy
(growth/policy_selection.py).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from banyan.errors import BanyanError
from services.chassis.process.process import first_of
from services.chassis.rpc.health import Pulse
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.publisher import Publisher
from services.rollout.engines.thread import EngineThread
from services.rollout.growth import return_reasons
from services.rollout.node.acting import Acting
from services.rollout.node.active_trees import ActiveTrees
from services.rollout.node.claiming import TreeClaimer
from services.rollout.node.completion import TreeCompleter
from services.rollout.node.config import NodeConfig
from services.rollout.node.event_reporter import EventReporter
from services.rollout.node.heartbeat import Heartbeat, load_of
from services.rollout.node.lease_renewal import LeaseRenewer
from services.rollout.node.lockstep import Lockstep
from services.rollout.node.score_waits import ScoreWaits
from services.rollout.node.starting import TreeStarter
from services.rollout.node.step_executor import StepExecutor
from services.rollout.node.tracing import Spans
from services.rollout.ports import Assignments, Environments, Log, Source, Store
from services.rollout.timeouts import BackgroundTasks, first
from services.rollout.weights.policy_watch import PolicyWatch
from services.rollout.weights.refresh import Refresher

log = logging.getLogger(__name__)

_TICK_S = 1.0
_LAST_CLAIM_S = 3.0
_CLOSINGS_S = 0.5
_LAST_EVENTS_S = 2.0
_CLAIM_S = 180.0  # a fetch, and a claim that the store may answer after it was started again
_PASS_S = 3600.0  # branches are stopped, which may wait behind a load: 165 GB at the slowest


class Node:
    """A node of one run.

    | loop | waits for | what it does |
    | --- | --- | --- |
    | `_claim` | `trees.changed`, then assignments | `_claimer` claims trees, as many as are free |
    | `_starter` | `trees.start_due` | starts claimed trees, a wave at a time in lockstep |
    | `_pump` | segments that end in the engine | `executor` plans their trees' next step |
    | `_waits` | scores and growth budgets in the store | lets waiting trees go on |
    | `_publisher` | events of growing trees | publishes them in order, again until acknowledged |
    | `_watch` | triggers and a timer | has `refresher` load new policies |
    | `_renewer` | a timer | renews claims of trees that progress |
    | `_heartbeat` | a timer | tells the store that the node lives, with its load |

    config: configuration of the node.
    store: the tree store.
    bus: the log of events.
    queue: the run's queue of assignments.
    thread: the engine's thread.
    weights: source of weights; None for an engine that reads none.
    triggers: events that say that there is a new policy.
    closings: events that say that trees have closed; None where growing trees are never dropped.
    environments: the verifier that answers actions; None where it cannot be reached.
    """

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        bus: Log,
        queue: Assignments,
        *,
        thread: EngineThread,
        weights: Source | None,
        triggers: AsyncIterator[object],
        closings: AsyncIterator[object] | None = None,
        environments: Environments | None = None,
    ) -> None:
        self.config, self._thread, self._closings = config, thread, closings
        # In lockstep a wave starts whole, whatever its width; its branches queue in the engine.
        max_branches = 1 << 30 if config.lockstep else config.max_branches
        self.trees = trees = ActiveTrees(max_branches, config.most_trees)
        self.refresher = refresher = Refresher(
            store, thread, weights, node_id=config.node_id, drain_s=config.refresh_s
        )
        self._tasks = tasks = BackgroundTasks()
        self._publisher = publisher = Publisher(bus, self._extend_loop_deadlines)
        self._completer = completer = TreeCompleter(
            config, store, publisher, blobs=Blobs(store), trees=trees, tasks=tasks
        )
        self._acting = Acting(environments, trees, tasks, config.lockstep)
        self.executor = executor = self._executor(store)
        self._claimer = TreeClaimer(queue, store, thread, refresher, config.node_id)
        self._starter = TreeStarter(
            config, trees, thread, refresher=refresher, executor=executor, completer=completer
        )
        self._renewer = LeaseRenewer(
            store,
            thread,
            trees,
            executor=executor,
            segment_deadline_s=config.segment_deadline_s,
        )
        self._heartbeat = Heartbeat(
            store,
            trees,
            config.joined,
            lambda: load_of(thread.seen, config.max_branches, refresher.loaded),
        )
        actor = Lockstep(trees, executor) if config.lockstep else executor
        self._waits = ScoreWaits(store, trees, executor=executor, actor=actor, tasks=tasks)
        self._watch = PolicyWatch(refresher, triggers, trees.start_due)
        self._drained = asyncio.Event()
        self._claiming: asyncio.Task[None] | None = None
        self._claim_pulse, self._pump_pulse = Pulse("taking trees"), Pulse("passing on")

    def _executor(self, store: Store) -> StepExecutor:
        spans = Spans()
        reporter = EventReporter(
            self.config,
            self._publisher,
            blobs=Blobs(store, self._extend_loop_deadlines),
            spans=spans,
            completer=self._completer,
        )
        return StepExecutor(
            self.trees,
            self._thread,
            reporter=reporter,
            completer=self._completer,
            spans=spans,
            acting=self._acting,
            tasks=self._tasks,
            lockstep=self.config.lockstep,
        )

    @property
    def pulses(self) -> tuple[Pulse, ...]:
        """The pulses of all its loops."""
        parts = (self._starter, self._watch, self._publisher, self._renewer, self._heartbeat)
        return (self._claim_pulse, self._pump_pulse, *(part.pulse for part in parts))

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`, a Drain call or, for a joined node, the end of the run.

        Then return the trees and leave.
        """
        await self.refresher.poll()
        sending = asyncio.create_task(self._publisher.run())
        self._claiming = claiming = asyncio.create_task(self._claim())
        endings = [stop.wait(), self._drained.wait(), self._heartbeat.over.wait()]
        loops = [
            self._pump(),
            self._starter.run(),
            self._watch.run(),
            self._renewer.run(),
            self._heartbeat.run(),
            self._waits.run(),
            self._thread.watch(),
        ]
        if self._closings is not None:
            loops.append(self._renew_on(self._closings))
        try:
            await first_of(*endings, *loops, asyncio.shield(sending), asyncio.shield(claiming))
            await self.drain(self.config.drain_s)
            await self._heartbeat.leave()
        except Exception:
            # Whatever fails, segments that have ended are published: no node samples them again.
            claiming.cancel()
            if not sending.done():
                await self._publisher.flush_if_possible(_LAST_EVENTS_S)
            raise
        finally:
            for task in (sending, claiming):
                task.cancel()
            self._tasks.cancel()

    async def drain(self, deadline_s: float) -> int:
        """Claim no more trees and return the unfinished ones, with all that was sampled of them.

        Returns the number of returned trees.
        """
        self.trees.draining = True
        begun, returned = time.monotonic(), 0
        try:
            async with asyncio.timeout(deadline_s):
                await self._claimer.close()
                cut = await self.executor.cut(*self.trees.growing)
                await self.executor.receive(self._thread.leftover() + cut)
                await self._publisher.flush(deadline_s)
                if self._claiming is not None:  # a claim under way is a tree to return
                    await asyncio.wait([self._claiming], timeout=_LAST_CLAIM_S)
                for tree in self.trees.unfinished:
                    await self._completer.return_tree(tree, return_reasons.DRAIN)
                    returned += 1
                while len(self.trees):  # those that the store is about to have
                    self.trees.changed.clear()
                    await first(self.trees.changed, _TICK_S)
        except (TimeoutError, BanyanError) as error:
            log.warning(
                "drain ended after %.1f s with %d trees left: %r",
                time.monotonic() - begun,
                len(self.trees),
                error,
            )
        self._drained.set()
        return returned

    async def _claim(self) -> None:
        """Claim trees, as many as there is capacity for, until the node drains."""
        while not self.trees.draining:
            self._claim_pulse.beat("a fetch", _CLAIM_S)
            self.trees.changed.clear()
            if not (self.trees.free and self.refresher.fit):
                await first(self.trees.changed, _TICK_S)
                continue
            for tree in await self._claimer.claim(self.trees.free):
                replaced = self.trees.put(tree)
                if replaced is not None:  # redelivered here: the new claim fences the old one
                    await self.executor.cut(replaced)
                    replaced.span.end()
        self._claim_pulse.rest()

    async def _pump(self) -> None:
        """Pass on the segments that end, step by step of the engine."""
        while True:
            samples = await self._thread.batches()
            with self._pump_pulse.during("what ended in a step", _PASS_S):
                await self.executor.receive(samples, is_turn=True)

    async def _renew_on(self, closings: AsyncIterator[object]) -> None:
        """Renew trees that may be superfluous when others have closed."""
        async for _ in closings:
            await self._renewer.renew_spare()
            await asyncio.sleep(_CLOSINGS_S)  # those that come meanwhile are one

    def _extend_loop_deadlines(self) -> None:
        """Extend the deadlines of the loops that wait while the broker or the store is away."""
        self._pump_pulse.again()
        self._starter.pulse.again()
