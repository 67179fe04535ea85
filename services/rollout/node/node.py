"""A rollout node: takes assignments, grows their trees on one engine, and publishes what ends (DESIGN 1, PROTOCOL 3).

Level-triggered: a policy event, a finished tree or a tick only make it look again at what is pending. The loops here
decide nothing about a tree (grower.py), a policy (policies.py) or a wave (waves.py).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from banyan.errors import BanyanError
from services.chassis.process.process import first_of
from services.chassis.rpc.health import Pulse
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.publisher import Publisher
from services.rollout.engines.port import Key, Request, Sampled
from services.rollout.engines.thread import EngineThread, Refusal
from services.rollout.growth import return_reasons
from services.rollout.growth.grower import GrowthStep
from services.rollout.node import waves
from services.rollout.node.active_trees import ActiveTree, Trees
from services.rollout.node.claiming import TreeClaimer
from services.rollout.node.completion import TreeCompleter
from services.rollout.node.config import NodeConfig
from services.rollout.node.event_reporter import EventReporter
from services.rollout.node.heartbeat import Heartbeat
from services.rollout.node.lease_renewal import LeaseRenewer
from services.rollout.node.lockstep import Lockstep, Work
from services.rollout.node.score_waits import ScoreWaits
from services.rollout.node.tracing import Spans
from services.rollout.ports import Assignments, Log, Source, Store
from services.rollout.timeouts import background, first
from services.rollout.weights.refresh import Refresher

log = logging.getLogger(__name__)

_TICK_S = 1.0
_POLICIES_S = 5.0
_TAKING_S = 3.0
_CLOSINGS_S = 0.5
_LAST_WORDS_S = 2.0
_TAKE_S = 180.0  # a fetch and a claim that the store may answer after it was started again
_START_S = 1800.0  # a new policy is fetched and loaded in between, and each has its own deadline
_PASS_S = 3600.0  # branches are stopped, which may wait behind a load: 165 GB at the slowest
_LOOK_S = 180.0  # a call that the store may answer after it was started again


class Node:
    """One node of one run."""

    def __init__(
        self,
        plan: NodeConfig,
        store: Store,
        bus: Log,
        queue: Assignments,
        thread: EngineThread,
        weights: Source | None,
        triggers: AsyncIterator[object],
        closings: AsyncIterator[object]
        | None = None,  # where trees may be given up while they grow
    ) -> None:
        self.plan, self._store, self._thread, self._triggers = plan, store, thread, triggers
        self._closings = closings
        # In lockstep a wave starts whole, whatever its width; its branches queue in the engine.
        self.trees = Trees(plan.max_branches if not plan.lockstep else 1 << 30, plan.most_trees)
        self.refresher = Refresher(store, thread, weights, plan.node_id, plan.refresh_s)
        self.draining = False
        self.visitors: dict[Key, asyncio.Queue[Sampled]] = {}
        self._publisher, self._spans = Publisher(bus, self._excuse), Spans()
        self._teller = EventReporter(
            plan, self._publisher, Blobs(store, self._excuse), self._spans, self._grown
        )
        self._taker = TreeClaimer(
            queue, store, lambda: thread.tokenizer, plan.node_id, lambda: self.refresher.fit
        )
        self._finisher = TreeCompleter(
            store, self._publisher, self.trees, plan.run_id, plan.node_id
        )
        self._keeper = LeaseRenewer(store, thread, self.trees, self._drop, plan.segment_deadline_s)
        self._presence = Heartbeat(store, self.trees, plan.joined)
        self._scores = ScoreWaits(store, self._act, self.trees.holds, self._give_up_here)
        self._turns = Lockstep(lambda: self.trees.growing, self._act_all, self._give_up_here)
        self._again = asyncio.Event()
        self._drained = asyncio.Event()
        self._taking: asyncio.Task[None] | None = None
        self._taken, self._started, self._passed = (
            Pulse("taking trees"),
            Pulse("starting trees"),
            Pulse("passing on"),
        )
        self._looked = Pulse("policies")
        own = self._taken, self._started, self._passed, self._looked
        self.pulses = *own, self._publisher.pulse, self._keeper.pulse, self._presence.pulse

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, a Drain call, or for a joined node the end of the run; then hands its trees back and leaves."""
        endings = stop.wait(), self._drained.wait(), self._presence.over.wait()
        await self.refresher.look()
        sending, taking = (
            asyncio.create_task(self._publisher.run()),
            asyncio.create_task(self._take()),
        )
        self._taking = taking
        loops = [
            self._pump(),
            self._start(),
            self._watch(),
            self._keeper.run(),
            self._presence.run(),
            self._thread.watch(),
        ]
        if self._closings is not None:
            loops.append(self._hear_closings(self._closings))
        try:
            await first_of(*endings, *loops, asyncio.shield(sending), asyncio.shield(taking))
            await self.drain(self.plan.drain_s)
            await self._presence.leave()
        except Exception:  # what ended before is told all the same, so that whoever goes on need not sample it again
            taking.cancel()
            if not sending.done():
                await self._say_all()
            raise
        finally:
            for task in (sending, taking):
                task.cancel()
            self._finisher.cancel()

    # -- loops --

    async def _take(self) -> None:
        while not self.draining:
            self._taken.beat("a fetch", _TAKE_S)
            self.trees.changed.clear()
            if not (self.trees.free and self.refresher.fit):
                await first(self.trees.changed, _TICK_S)
                continue
            for live in await self._taker.take(self.trees.free):
                if (
                    old := self.trees.put(live)
                ) is not None:  # redelivered here: the new claim fences the old one
                    await self._cut(old)
                    old.span.end()
            self._again.set()
        self._taken.rest()

    async def _start(self) -> None:
        """Starts what may start, whenever something changed."""
        while True:
            self._started.beat("a look at what may start", _START_S)
            await first(self._again, _TICK_S)
            self._again.clear()
            specs = (
                [live.spec for live in self.trees.growing],
                [live.spec for live in self.trees.pending],
            )
            cut = await self.refresher.refresh(*specs)
            await self._digest(cut)
            if not self.refresher.fit:
                self._step_aside()
                continue
            await self._start_ready()
            await self._return_late()

    async def _start_ready(self) -> None:
        loaded = self.refresher.loaded
        if loaded is None or self.draining:
            return
        ready = [live for live in self.trees.pending if live.spec.allows(loaded.step)]
        found = waves.startable(ready, time.monotonic())
        if self.plan.lockstep and found:  # one wave at a time, and nothing kept from the one before
            if self.trees.growing:
                return
            self._thread.forget()
            found = found[:1]
        steps: list[tuple[ActiveTree, GrowthStep]] = []
        for live in (live for wave in found for live in wave):
            live.started, live.touched = True, time.monotonic()
            if (step := self._grow(live, live.grower.start)) is not None:
                steps.append((live, step))
        await self._carry_out(steps)

    def _step_aside(self) -> None:
        """Hands all trees to nodes whose engines can be trusted."""
        for live in [t for t in self.trees if not t.finishing]:
            self._give_up(live, return_reasons.UNFIT)

    async def _return_late(self) -> None:
        """Gives trees back whose policy does not come."""
        late = time.monotonic() - self.plan.policy_wait_s
        loaded = self.refresher.loaded
        for live in self.trees.pending:
            if live.since < late and not (loaded is not None and live.spec.allows(loaded.step)):
                await self._finisher.give_back(live, return_reasons.POLICY)

    async def _watch(self) -> None:
        """Looks at the policies when an event says so, and now and then without one."""
        heard = asyncio.Event()
        async with background(self._listen(heard)):
            while True:
                self._looked.beat("a look", _LOOK_S)
                try:
                    await self.refresher.look()
                except BanyanError as error:
                    log.warning("policies are not read: %s", error)
                self._again.set()
                await first(heard, _POLICIES_S)
                heard.clear()

    async def _listen(self, heard: asyncio.Event) -> None:
        async for _ in self._triggers:
            heard.set()

    async def _hear_closings(self, closings: AsyncIterator[object]) -> None:
        async for _ in closings:
            await self._keeper.check()
            await asyncio.sleep(_CLOSINGS_S)  # those that come meanwhile are one

    async def _pump(self) -> None:
        while True:
            batch = await self._thread.batches()
            with self._passed.during(
                "what ended in a step", _PASS_S
            ):  # meanwhile the engine waits, and excuses itself
                await self._digest(batch, turn=True)

    def _excuse(self) -> None:
        """Broker or store is away: who passes something on waits for it, however long that is, and does not hang."""
        self._passed.again()
        self._started.again()

    # -- what ended --

    async def _digest(self, batch: Sequence[Sampled], turn: bool = False) -> None:
        """Gives ended segments to their growers and carries out what follows."""
        ended: dict[tuple[bytes, int], list[Sampled]] = {}
        for sampled in batch:
            if sampled.key in self.visitors:
                self.visitors[sampled.key].put_nowait(sampled)
            elif isinstance(sampled.key, tuple):
                ended.setdefault(sampled.key[:2], []).append(sampled)
        steps: list[tuple[ActiveTree, GrowthStep]] = []
        for key, some in ended.items():
            if (live := self.trees.get(*key)) is not None and not live.finishing:
                live.touched = time.monotonic()
                if (step := self._grow(live, partial(live.grower.ended, some))) is not None:
                    steps.append((live, step))
        await self._carry_out(steps, turn)

    def _grow(self, live: ActiveTree, work: Callable[[], GrowthStep]) -> GrowthStep | None:
        """A step of a tree. Tree policies and chat templates are anybody's code: what they raise ends the tree alone."""
        try:
            return work()
        except Exception as error:
            log.exception("tree %s cannot be grown", live.spec.tree_id.hex()[:12])
            self._give_up(live, return_reasons.failed(error))
            return None

    async def _act(self, live: ActiveTree, work: Work) -> None:
        await (
            self._turns.take(live, work) if self.plan.lockstep else self._act_all([(live, work)])
        )

    async def _act_all(self, works: Sequence[tuple[ActiveTree, Work]]) -> None:
        steps = [(live, self._grow(live, work)) for live, work in works]
        await self._carry_out([(live, step) for live, step in steps if step is not None])

    async def _carry_out(
        self, steps: Sequence[tuple[ActiveTree, GrowthStep]], turn: bool = False
    ) -> None:
        """Requests first, so that the engine has work while events are sent."""
        requests = [r for _, step in steps for r in step.requests]
        if requests and not self.draining:
            self._ask(requests)
        if turn and self.plan.lockstep:
            self._thread.turn()
        await self._teller.tell(steps)
        for live, step in steps:
            if step.aborts:
                await self._digest(
                    await self._thread.abort([live.grower.key(b) for b in step.aborts])
                )
            if self._scores.due(live):
                self.trees.changed.set()  # there may be place for others
                self._finisher.spawn(self._scores.wait(live))

    def _ask(self, requests: Sequence[Request]) -> None:
        self._spans.asked(requests)
        future = asyncio.wrap_future(self._thread.submit(requests))
        future.add_done_callback(self._answered)

    def _answered(self, answer: "asyncio.Future[list[Refusal]]") -> None:
        if answer.cancelled() or answer.exception() is not None:
            return  # the engine has ended, and the pump says why
        for refusal in answer.result():
            live = self.trees.get(*refusal.key[:2]) if isinstance(refusal.key, tuple) else None
            if live is not None and not live.finishing:
                log.error("tree %s ends here: %s", live.spec.tree_id.hex()[:12], refusal.reason)
                self._give_up(live, return_reasons.refusal(refusal.reason, refusal.code))

    def _give_up(self, live: ActiveTree, reason: str) -> None:
        live.finishing = True
        self._finisher.spawn(self._cut_and_return(live, reason))

    def _give_up_here(self, live: ActiveTree, error: Exception) -> None:
        self._give_up(live, return_reasons.here(error))

    async def _cut_and_return(self, live: ActiveTree, reason: str) -> None:
        await self._cut(live)
        await self._say_all()
        await self._finisher.give_back(live, reason)

    def _grown(self, live: ActiveTree) -> None:
        self._finisher.begin(live)
        self._again.set()

    # -- letting go --

    async def _cut(self, *trees: ActiveTree) -> list[Sampled]:
        keys = [live.grower.key(branch) for live in trees for branch in live.grower.in_flight]
        self._spans.forget(keys)
        return await self._thread.abort(keys)

    async def _say_all(self) -> None:
        """Sends what rests: once a tree is handed back or the node gone, the next claim would fence it."""
        with contextlib.suppress(BanyanError):
            await self._publisher.flush(_LAST_WORDS_S)

    async def _drop(self, live: ActiveTree, why: str, ack: bool) -> None:
        """Forgets a tree that is no longer this node's."""
        log.info("tree %s is dropped here: %s", live.spec.tree_id.hex()[:12], why)
        if self.trees.forget(live):
            await self._cut(live)
            if ack:
                await live.delivery.ack()

    async def drain(self, deadline_s: float) -> int:
        """Takes no new trees and hands the live ones back, with all that was sampled of them; how many."""
        self.draining = True
        begun, returned = time.monotonic(), 0
        try:
            async with asyncio.timeout(deadline_s):
                await self._taker.close()
                parts = await self._cut(*self.trees.growing)
                await self._digest(self._thread.leftover() + parts)
                await self._publisher.flush(deadline_s)
                if self._taking is not None:  # a claim that was asked for is a tree to hand back
                    await asyncio.wait([self._taking], timeout=_TAKING_S)
                for live in [t for t in self.trees if not t.finishing]:
                    await self._finisher.give_back(live, return_reasons.DRAIN)
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
