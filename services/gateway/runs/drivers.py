"""The drivers of a gateway, one for each run that wants processes.

It starts missing drivers, and passes failures on to runs.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from banyan.errors import BanyanError, InvalidInput, PermanentError, Refused, TemporaryError
from banyan.reasons import Reason
from banyan.recipe import Recipe
from banyan.recipe_loader import load
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1.runstore_service_pb2 import RunState as S
from services.chassis.rpc.health import Liveness, Pulse
from services.gateway.domain import state_machine
from services.gateway.domain.ports import Learners, Log, Store
from services.gateway.domain.state_machine import State
from services.gateway.runs.driver import Driver, cause_of
from services.gateway.tasks import dataset
from services.gateway.tasks.dataset import Examples

log = logging.getLogger(__name__)

SWEEP_S = 2.0
_SWEPT_S = 180.0  # a few calls that the store may answer after a restart
_ADOPT_S = 1800.0  # reading a task of many gigabytes


class Drivers:
    """The drivers, by run."""

    def __init__(self, store: Store, bus: Log, learners: Learners, epoch: int) -> None:
        self._store, self._bus, self._learners = store, bus, learners
        self._epoch = epoch
        self._drivers: dict[str, Driver] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._wake = asyncio.Event()
        self.liveness, self._pulse = Liveness(), Pulse("runs")
        self.liveness.add(self._pulse)

    async def run(self) -> None:
        """Keep a driver on every live run until cancelled.

        Raise Refused once a newer gateway has taken over.
        """
        await self._clear_leftovers()
        try:
            while True:
                await self._sweep()
                self._pulse.beat("a wait", _SWEPT_S)
                await self._wait()
        finally:
            self._pulse.rest()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _clear_leftovers(self) -> None:
        """Stop wanting processes of runs that do not work.

        A gateway leaves them if it dies between a run's end or pause and the end of its processes.
        """
        working = {
            run.run_id
            for run in await self._store.read_runs(live_only=True)
            if state_machine.working(run.state)
        }
        for run_id in {p.run_id for p in await self._store.read_desired()} - working:
            await self._store.set_desired(run_id, {})

    async def _sweep(self) -> None:
        self._pulse.beat("a sweep of all runs", _SWEPT_S)
        try:
            for run in await self._store.read_runs(live_only=True):
                if state_machine.working(run.state) and run.run_id not in self._tasks:
                    self._pulse.beat(f"adopting run {run.run_id}", _ADOPT_S)
                    await self._adopt(run)
        except PermanentError:
            raise
        except BanyanError as error:
            # Includes errors that do not say whether they may pass: no run is at fault.
            log.warning("%s; trying again", error)

    async def _adopt(self, run: runs.Run) -> None:
        try:
            recipe = load.resolve(json.loads(run.recipe_json), f"recipe of {run.run_id}")
            examples = await dataset.load(recipe, Path.cwd())
            if examples.digest != run.split_digest:
                raise InvalidInput(
                    "the task's rows are not those that the run began with;"
                    " restore them and resume it"
                )
        except TemporaryError:
            raise
        except PermanentError as error:
            return await self._pause(run, str(error))
        except Exception as error:  # the task or a plugin may be the user's own
            log.warning("run %s cannot be adopted", run.run_id, exc_info=True)
            return await self._pause(run, f"{type(error).__name__}: {error}")
        try:
            self.start(run.run_id, recipe, examples)
        except Exception as error:  # building a driver builds the user's plugins
            log.warning("run %s cannot be driven", run.run_id, exc_info=True)
            await self._fail(run, cause_of(error))

    async def _pause(self, run: runs.Run, cause: str) -> None:
        """Pause a run that cannot go on as things are; its data is kept until they are mended."""
        await self._retire(run, S.RUN_STATE_PAUSED, cause)

    async def _fail(self, run: runs.Run, cause: str) -> None:
        """End a run that cannot be driven."""
        await self._retire(run, S.RUN_STATE_FAILED, cause)

    async def _retire(self, run: runs.Run, state: State, cause: str) -> None:
        try:
            await self._store.move_run(run.run_id, run.state, state, cause)
        except Refused as error:
            if error.reason == Reason.STALE_EPOCH:
                raise
            # The run was moved at the same moment; the next sweep reads its state.
            log.info("run %s: %s", run.run_id, error)
        await self._store.set_desired(run.run_id, {})

    def start(self, run_id: str, recipe: Recipe, examples: Examples) -> None:
        """Start a driver for a run, unless it has one."""
        if run_id in self._tasks:
            return
        driver = self._driver(run_id, recipe, examples)
        self._drivers[run_id] = driver
        self.liveness.add(driver.pulse)
        self._tasks[run_id] = asyncio.create_task(
            driver.run(lambda: self._notify_watchers(run_id)), name=f"drive-{run_id}"
        )

    def check(self, run_id: str, recipe: Recipe, examples: Examples) -> None:
        """Raise the error that would keep a driver from starting, before the run is stored."""
        self._driver(run_id, recipe, examples)

    def _driver(self, run_id: str, recipe: Recipe, examples: Examples) -> Driver:
        return Driver(
            self._store,
            self._bus,
            self._learners,
            run_id=run_id,
            recipe=recipe,
            examples=examples,
            epoch=self._epoch,
        )

    async def _wait(self) -> None:
        woken = asyncio.create_task(self._wake.wait())
        await asyncio.wait(
            [woken, *self._tasks.values()], timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED
        )
        woken.cancel()
        self._wake.clear()
        for run_id, task in list(self._tasks.items()):
            if task.done():
                self.liveness.drop(self._drivers[run_id].pulse)
                del self._tasks[run_id], self._drivers[run_id]
                await self._ended(run_id, task)

    async def _ended(self, run_id: str, task: asyncio.Task[None]) -> None:
        """Fail the run of a driver that ended by an error.

        Only a newer gateway ends this gateway.
        """
        error = task.exception()
        if error is None:
            return
        if isinstance(error, Refused) and error.reason == Reason.STALE_EPOCH:
            raise error
        log.error("run %s: its driver ended", run_id, exc_info=error)
        try:
            run = (await self._store.read_run(run_id)).run
            if state_machine.working(run.state):
                await self._fail(run, f"{type(error).__name__}: {error}")
        except BanyanError as later:
            if later.reason == Reason.STALE_EPOCH:
                raise
            # The next sweep starts another driver.
            log.warning("run %s: %s; trying again", run_id, later)

    def wake(self, run_id: str) -> None:
        """Request a pass over a run that was just moved, and notify its watchers."""
        self._wake.set()
        if run_id in self._drivers:
            self._drivers[run_id].wake()
        self._notify_watchers(run_id)

    @contextmanager
    def watching(self, run_id: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set after every pass of the run's driver."""
        event = asyncio.Event()
        self._watchers.setdefault(run_id, set()).add(event)
        try:
            yield event
        finally:
            self._watchers[run_id].discard(event)
            if not self._watchers[run_id]:
                del self._watchers[run_id]

    def _notify_watchers(self, run_id: str) -> None:
        for event in self._watchers.get(run_id, ()):
            event.set()
