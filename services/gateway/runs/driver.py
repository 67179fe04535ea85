"""Drives one live run: looks at the store after every trigger, at least every two seconds, and does what `decide` says."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from banyan.errors import BanyanError, PermanentError, Refused, TemporaryError
from banyan.reasons import Reason
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1.runstore_service_pb2 import RunState as S
from services.chassis.rpc.health import Pulse
from services.gateway.allocation.allocator import Allocator
from services.gateway.allocation.budget_rounds import BudgetRounds
from services.gateway.domain import state_machine
from services.gateway.domain.ports import Learners, Log, Store
from services.gateway.domain.state_machine import State
from services.gateway.runs.applied_steps import Applied
from services.gateway.runs.decide import Decision, Move, decide, processes
from services.gateway.runs.evaluation import Evaluation, measured_rows
from services.gateway.runs.facts import facts_of, standing_of
from services.gateway.runs.failure_streak import Streak
from services.gateway.runs.opening import Opener, Wave
from services.gateway.runs.revive import applied
from services.gateway.runs.staleness_gate import Gate, GroupCounts, PolicySteps
from services.gateway.runs.tree_publisher import Publisher
from services.gateway.tasks.dataset import Examples

log = logging.getLogger(__name__)

TICK_S = 2.0  # the safety net under lost triggers
_LOOK_S = 1200.0  # the last look waits for a checkpoint, up to ten minutes
MOST_ODD = 4  # unforeseen errors in a row that end a run


class Driver:
    """One run. Keeps only caches: another driver, in another process, would go on at any point."""

    def __init__(
        self,
        store: Store,
        bus: Log,
        learners: Learners,
        recipe: Recipe,
        rows: Examples,
        run_id: str,
        epoch: int,
    ) -> None:
        self.run_id = run_id
        self._learners = learners
        self._store, self._log, self._recipe, self._rows = store, bus, recipe, rows
        self._opener = Opener(run_id, recipe, rows)
        self._allocator = Allocator(store, run_id, recipe, rows)
        self._rooms = BudgetRounds(store, recipe, run_id) if recipe.control.rooms else None
        self._training = Publisher(bus, run_id, epoch)
        self._measuring = Publisher(bus, run_id, epoch)
        self._gate = Gate.of(recipe.control)
        self._streak = Streak()
        self._applied = Applied()
        self._desired: dict[str, int] | None = None
        self._recovered = False
        self._broken = ""
        self._odd = 0  # looks in a row that ended in what nobody foresaw
        self._wake = asyncio.Event()
        self.pulse = Pulse(f"run {run_id}")

    def kick(self) -> None:
        """Looks again soon."""
        self._wake.set()

    async def run(self, looked: Callable[[], None] = lambda: None) -> None:
        """Drives the run until it is over or paused. Raises Refused when a newer gateway has taken over."""
        hearing = [asyncio.create_task(self._hear())]
        if self._rooms:
            hearing.append(asyncio.create_task(self._rooms.hear(self.kick)))
        try:
            self.pulse.beat("the first look", _LOOK_S)
            while not await self._try_look():
                looked()
                await self._rest()
                self.pulse.beat("a look", _LOOK_S)
            looked()
        finally:
            self.pulse.rest()
            for task in hearing:
                task.cancel()

    async def _hear(self) -> None:
        async with contextlib.aclosing(self._log.triggers(self.run_id)) as triggers:  # type: ignore[type-var]
            async for _ in triggers:
                self._wake.set()

    async def _rest(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        self._wake.clear()

    async def _try_look(self) -> bool:
        try:
            if await self.look():
                return True
        except Refused as error:
            if error.reason == Reason.STALE_EPOCH:
                raise
            log.info("run %s: %s; looking again", self.run_id, error)
        except TemporaryError as error:
            log.warning("run %s: %s; looking again", self.run_id, error)
        except PermanentError as error:
            self._break(str(error))
        except Exception as error:  # a fault of this run's is not the other runs'
            log.exception("run %s: unexpected", self.run_id)
            # a connection that breaks in the middle of an answer may look like this, too
            self._odd += 1
            if self._odd >= MOST_ODD:
                self._break(
                    str(error)
                    if isinstance(error, BanyanError)
                    else f"{type(error).__name__}: {error}"
                )
        else:
            self._odd = 0
        return False

    def _break(self, cause: str) -> None:
        """The next look fails the run with the first cause. Where that too meets a fault, there is no hurry."""
        if not self._broken:
            self._broken = cause
            self.kick()

    async def look(self) -> bool:
        """Looks once and acts. True when the run is over or paused, and wants nothing any more."""
        answer = await self._store.read_run(self.run_id)
        state = answer.run.state
        await self._want(processes(self._recipe, state))
        if not state_machine.working(state):
            return True
        if self._broken:
            await self._move(state, Move(S.RUN_STATE_FAILED, self._broken))
            return False
        progress = await self._store.read_progress(self.run_id)
        standing = standing_of(progress)
        facts = facts_of(
            answer,
            progress,
            len(self._rows.held_out),
            hopeless=await self._hopeless(standing),
            fruitless=await self._fruitless(standing),
            unheard=len(self._training),
        )
        await self._act(state, decide(self._recipe, facts), progress, standing)
        return False

    async def _want(self, wanted: dict[str, int]) -> None:
        if wanted != self._desired:
            await self._store.set_desired(self.run_id, wanted)
            self._desired = wanted

    async def _hopeless(self, standing: GroupCounts | None) -> str:
        if standing is None:
            return ""
        self._streak = self._streak.after(standing)
        if not self._streak.hopeless(standing, self._recipe.control.groups_per_batch):
            return ""
        return f"{self._streak.words(standing)}{await self._why('')}"

    async def _fruitless(self, standing: GroupCounts | None) -> str:
        """Say why no step has changed the weights; empty once one has. The policies are read until then, each once."""
        if standing is None:
            return ""
        self._applied = await applied(self._store, self.run_id, self._applied)
        return self._applied.missing(standing.batches)

    async def _why(self, label: str) -> str:
        reasons = list(await self._store.troubles(self.run_id, label))
        return f": {'; '.join(reasons[:3])}" if reasons else ""

    async def _act(
        self,
        state: State,
        decision: Decision,
        progress: runs.ReadProgressResponse,
        standing: GroupCounts | None,
    ) -> None:
        if decision.unscorable:
            label = decision.unscorable.label
            cause = f"evaluation {label}: no row could be scored{await self._why(label)}"
            return await self._move(state, Move(S.RUN_STATE_FAILED, cause))
        if decision.move:
            cause = (
                f"{decision.move.cause}{await self._why('')}"
                if decision.move.explain
                else decision.move.cause
            )
            return await self._move(state, replace(decision.move, cause=cause))
        for wanted in decision.evaluations:
            await self._measure(wanted, progress)
        if standing and state == S.RUN_STATE_TRAINING:
            await self._open(standing, decision.groups)
            if self._rooms:
                await self._rooms.look()

    async def _move(self, old: State, move: Move) -> None:
        if move.to == S.RUN_STATE_SUCCEEDED:
            # what the run was for is on disk before it counts as a success
            await self._learners.checkpoint(self.run_id)
        log.info(
            "run %s: %s → %s %s",
            self.run_id,
            state_machine.name(old),
            state_machine.name(move.to),
            move.cause,
        )
        await self._store.move_run(self.run_id, old, move.to, move.cause)
        self.kick()

    async def _measure(self, wanted: Evaluation, progress: runs.ReadProgressResponse) -> None:
        stored = next((e.groups for e in progress.evals if e.label == wanted.label), 0)
        if stored < measured_rows(self._recipe, len(self._rows.held_out)):
            await self._measuring.open(wanted.label, lambda: self._opener.evaluation(wanted))
        else:
            self._measuring.forget(lambda label: label == wanted.label)

    async def _open(self, standing: GroupCounts, groups: int) -> None:
        """Opens the next groups, and again what the store has not got: ordinals before `opened` are stored whole."""
        first = standing.opened
        self._training.forget(lambda ordinal: int(ordinal) < first)
        if not self._recovered:
            await self._recover(standing)
            self._recovered = True
        await self._training.again()
        steps = [self._gate.steps(standing, position) for position in range(groups)]
        wave = (
            Wave(self.run_id, standing.step, first, groups) if self._recipe.deterministic else None
        )
        await self._open_groups(range(first, first + groups), standing, steps, wave)

    async def _open_groups(
        self, ordinals: range, standing: GroupCounts, steps: list[PolicySteps], wave: Wave | None
    ) -> None:
        allocations = await self._allocator.fill(ordinals, standing.batches)
        if wave:
            wave = replace(wave, trees=sum(map(self._opener.group_size, allocations)))
        await asyncio.gather(
            *(
                self._training.open(
                    ordinal, partial(self._opener.training, ordinal, allocation, step, wave)
                )
                for ordinal, allocation, step in zip(ordinals, allocations, steps, strict=True)
            )
        )

    async def _recover(self, standing: GroupCounts) -> None:
        """Completes what an earlier gateway may have left half opened: a group, or a wave that nodes wait for."""
        last = await self._store.last_training_tree(self.run_id)
        if last is None:
            return
        wave = Wave.parse(last.wave) if last.wave else None
        steps = PolicySteps(last.min_step, last.last_step if last.HasField("last_step") else None)
        end = wave.ordinals.stop if wave else last.group_ordinal + 1
        if standing.opened < end:
            ordinals = wave.ordinals if wave else range(standing.opened, end)
            await self._open_groups(ordinals, standing, [steps] * len(ordinals), wave)
