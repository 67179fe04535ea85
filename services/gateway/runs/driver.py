"""The driver of one live run.

It reconciles the run with the store after every trigger, and at least every two seconds.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from banyan.errors import BanyanError, PermanentError, Refused, TemporaryError, with_kind
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
from services.gateway.runs.applied_steps import Applied, read_applied
from services.gateway.runs.decide import Decision, Move, decide, processes
from services.gateway.runs.evaluation import Evaluation, measured_rows
from services.gateway.runs.facts import facts_of, group_counts
from services.gateway.runs.failure_streak import Streak
from services.gateway.runs.opening import Opener, Wave
from services.gateway.runs.staleness_gate import Gate, GroupCounts, PolicySteps
from services.gateway.runs.tree_publisher import Publisher
from services.gateway.tasks.dataset import Examples

log = logging.getLogger(__name__)

TICK_S = 2.0  # the safety net under lost triggers
_RECONCILE_S = 1200.0  # the last pass waits up to ten minutes for a checkpoint
MOST_UNFORESEEN = 4  # unforeseen errors in a row that end a run


def cause_of(error: BaseException) -> str:
    """Return an error as the cause of a run's end, with the type of an error that is not ours."""
    return str(error) if isinstance(error, BanyanError) else with_kind(error)


def _is_in_the_log(trouble: str) -> bool:
    """Return whether the verifier's log says more of a score that is missing."""
    reason, _, cause = trouble.partition(": ")[2].partition(":")
    unnamed = reason in (Reason.ENVIRONMENT_FAULT, Reason.ENVIRONMENT_DIVERGED) and not cause
    return unnamed or reason == Reason.INFRASTRUCTURE


class Driver:
    """A run's driver. It holds only caches: another driver in another process could take over."""

    def __init__(
        self,
        store: Store,
        bus: Log,
        learners: Learners,
        *,
        run_id: str,
        recipe: Recipe,
        examples: Examples,
        epoch: int,
    ) -> None:
        self.run_id = run_id
        self._store, self._log, self._learners = store, bus, learners
        self._recipe, self._examples = recipe, examples
        self._opener = Opener(run_id, recipe, examples)
        self._allocator = Allocator(store, run_id, recipe, examples)
        self._budget_rounds = BudgetRounds(store, recipe, run_id) if recipe.control.rooms else None
        self._training = Publisher(bus, run_id, epoch)
        self._measuring = Publisher(bus, run_id, epoch)
        self._gate = Gate.of(recipe.control)
        self._streak = Streak()
        self._applied = Applied()
        self._desired: dict[str, int] | None = None
        self._recovered = False
        self._broken = ""
        self._unforeseen = 0  # passes in a row that ended in an error nobody foresaw
        self._wake = asyncio.Event()
        self.pulse = Pulse(f"run {run_id}")

    def wake(self) -> None:
        """Request another pass soon."""
        self._wake.set()

    async def run(self, on_pass: Callable[[], None] = lambda: None) -> None:
        """Drive the run until it is over or paused, calling `on_pass` after every pass.

        Raises Refused once a newer gateway has taken over.
        """
        subscriptions = [asyncio.create_task(self._subscribe())]
        if self._budget_rounds:
            subscriptions.append(asyncio.create_task(self._budget_rounds.subscribe(self.wake)))
        try:
            self.pulse.beat("the first pass", _RECONCILE_S)
            while not await self._try_reconcile():
                on_pass()
                await self._wait()
                self.pulse.beat("a pass", _RECONCILE_S)
            on_pass()
        finally:
            self.pulse.rest()
            for task in subscriptions:
                task.cancel()

    async def _subscribe(self) -> None:
        opened = contextlib.aclosing(self._log.triggers(self.run_id))  # type: ignore[type-var]
        async with opened as triggers:
            async for _ in triggers:
                self._wake.set()

    async def _wait(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        self._wake.clear()

    async def _try_reconcile(self) -> bool:
        try:
            if await self.reconcile():
                return True
        except Refused as error:
            if error.reason == Reason.STALE_EPOCH:
                raise
            log.info("run %s: %s; trying again", self.run_id, error)
        except TemporaryError as error:
            log.warning("run %s: %s; trying again", self.run_id, error)
        except PermanentError as error:
            self._break(str(error))
        except Exception as error:  # a fault of this run must not end the other runs
            log.exception("run %s: unexpected", self.run_id)
            # A connection that breaks in the middle of an answer may look like this, too.
            self._unforeseen += 1
            if self._unforeseen >= MOST_UNFORESEEN:
                self._break(cause_of(error))
        else:
            self._unforeseen = 0
        return False

    def _break(self, cause: str) -> None:
        """Let the next pass fail the run with the first cause.

        If that pass meets a fault too, the next tick tries again.
        """
        if not self._broken:
            self._broken = cause
            self.wake()

    async def reconcile(self) -> bool:
        """Read the store once and act on it. Return True once the run is over or paused."""
        # A run that is to fail needs none, which may be what cannot be read.
        answer = await self._store.read_run(self.run_id, with_progress=not self._broken)
        state = answer.run.state
        await self._want(processes(self._recipe, state))
        if not state_machine.working(state):
            return True
        if self._broken:
            await self._move(state, Move(S.RUN_STATE_FAILED, self._broken))
            return False
        progress = answer.progress
        counts = group_counts(progress)
        facts = facts_of(
            answer,
            progress,
            len(self._examples.held_out),
            hopeless=await self._hopeless(counts),
            fruitless=await self._fruitless(counts),
            unstored=len(self._training),
        )
        await self._act(state, decide(self._recipe, facts), progress, counts)
        return False

    async def _want(self, wanted: dict[str, int]) -> None:
        if wanted != self._desired:
            await self._store.set_desired(self.run_id, wanted)
            self._desired = wanted

    async def _hopeless(self, counts: GroupCounts | None) -> str:
        if counts is None:
            return ""
        self._streak = self._streak.after(counts)
        if not self._streak.hopeless(counts, self._recipe.control.groups_per_batch):
            return ""
        return f"{self._streak.words(counts)}{await self._why('')}"

    async def _fruitless(self, counts: GroupCounts | None) -> str:
        """Return why no step has changed the weights; empty once one has.

        Until then each policy is read once.
        """
        if counts is None:
            return ""
        self._applied = await read_applied(self._store, self.run_id, self._applied)
        environment = self._recipe.environment
        return self._applied.missing(counts.batches, environment.name if environment else "")

    async def _why(self, label: str) -> str:
        reasons = list(await self._store.troubles(self.run_id, label))
        if not reasons:
            return ""
        more = any(_is_in_the_log(reason) for reason in reasons)
        return f": {'; '.join(reasons[:3])}" + ("; the verifier's log says more" if more else "")

    async def _act(
        self,
        state: State,
        decision: Decision,
        progress: runs.ReadProgressResponse,
        counts: GroupCounts | None,
    ) -> None:
        if decision.unscorable:
            label = decision.unscorable.label
            cause = f"evaluation {label}: no row could be scored{await self._why(label)}"
            return await self._move(state, Move(S.RUN_STATE_FAILED, cause))
        if decision.move:
            cause = decision.move.cause
            if decision.move.explain:
                cause += await self._why("")
            return await self._move(state, replace(decision.move, cause=cause))
        for wanted in decision.evaluations:
            await self._measure(wanted, progress)
        if counts and state == S.RUN_STATE_TRAINING:
            await self._open(counts, decision.groups)
            if self._budget_rounds:
                await self._budget_rounds.reconcile()

    async def _move(self, old: State, move: Move) -> None:
        if move.to == S.RUN_STATE_SUCCEEDED:
            # The result of the run is on disk before the run counts as a success (ADR 006).
            await self._learners.checkpoint(self.run_id)
        names = f"{state_machine.name(old)} → {state_machine.name(move.to)}"
        log.info("run %s: %s %s", self.run_id, names, move.cause)
        await self._store.move_run(self.run_id, old, move.to, move.cause)
        self.wake()

    async def _measure(self, wanted: Evaluation, progress: runs.ReadProgressResponse) -> None:
        stored = next((e.groups for e in progress.evals if e.label == wanted.label), 0)
        if stored < measured_rows(self._recipe, len(self._examples.held_out)):
            await self._measuring.open(wanted.label, lambda: self._opener.evaluation(wanted))
        else:
            self._measuring.forget(lambda label: label == wanted.label)

    async def _open(self, counts: GroupCounts, groups: int) -> None:
        """Open the next groups, and reopen those that the store lacks.

        Ordinals below `opened` are stored whole.
        """
        first = counts.opened
        self._training.forget(lambda ordinal: int(ordinal) < first)
        if not self._recovered:
            await self._recover(counts)
            self._recovered = True
        await self._training.reopen()
        steps = [self._gate.steps(counts, position) for position in range(groups)]
        wave = Wave(self.run_id, counts.step, first, groups) if self._recipe.deterministic else None
        await self._open_groups(range(first, first + groups), counts, steps, wave)

    async def _open_groups(
        self, ordinals: range, counts: GroupCounts, steps: list[PolicySteps], wave: Wave | None
    ) -> None:
        allocations = await self._allocator.fill(ordinals, counts.batches)
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

    async def _recover(self, counts: GroupCounts) -> None:
        """Complete a group or a wave that an earlier gateway may have left half open.

        Nodes wait for a wave to be complete.
        """
        last = await self._store.last_training_tree(self.run_id)
        if last is None:
            return
        wave = Wave.parse(last.wave) if last.wave else None
        steps = PolicySteps(last.min_step, last.last_step if last.HasField("last_step") else None)
        end = wave.ordinals.stop if wave else last.group_ordinal + 1
        if counts.opened < end:
            ordinals = wave.ordinals if wave else range(counts.opened, end)
            await self._open_groups(ordinals, counts, [steps] * len(ordinals), wave)
