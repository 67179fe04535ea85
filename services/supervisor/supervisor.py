"""Starts what is wanted, starts again what dies, stops all of it in order. The only parent of all processes."""

import asyncio
import contextlib
import json
import logging
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from banyan.errors import BanyanError, DeadlineMissed, NotFound, TemporaryError
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.process import cores
from services.chassis.process.nats_server import free_port
from services.chassis.process.process import cancelled
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.fleet import (
    BASE,
    HUNG_GRACE_S,
    LOADING_GRACE_S,
    STOP_ORDER,
    ProcessCommands,
    grace_s,
    threads_for,
)
from services.supervisor.probes import probe_of
from services.supervisor.runstore import RunStore
from services.supervisor.state import HOST, can_listen
from services.supervisor.watch import Patience, watched

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
READY_S = 90.0
UNBEGUN_GRACE_S = 1.0
CANNOT_START = 126  # as shells say it


class GivenUp(BanyanError):
    """A service of all runs ended too often; the message holds the end of its log."""

    reason = Reason.GIVEN_UP


class Supervisor:
    """Keeps the processes of one state folder. `failure` resolves when a service of all runs is given up."""

    def __init__(
        self,
        fleet: ProcessCommands,
        nats: Callable[[], Awaitable[Child]],
        backoff: Backoff | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.fleet = fleet
        self._nats = nats
        self._backoff, self._patience = backoff or Backoff(), patience or Patience()
        self.children: dict[str, Child] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._wanted: set[str] = set()  # that are kept
        # of runs, by name, with the number of its kind
        self._desired: dict[str, tuple[rs.DesiredProcess, int]] = {}
        self._settling: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self._watcher: asyncio.Task[None] | None = None
        self.store: RunStore | None = None
        self.failure: asyncio.Future[BanyanError] = asyncio.get_running_loop().create_future()

    # -- start --

    async def start(self) -> None:
        """Broker, then the services of all runs; returns when all of them serve."""
        await self._keep(await self._nats())
        await asyncio.sleep(0)
        for service in BASE:
            await self._keep(self.fleet.base(service))
        await asyncio.gather(*(self.await_ready(service) for service in BASE))
        self.store = RunStore(self.fleet.state.address("treestore"), self.fleet.state.secret)
        self._watcher = asyncio.create_task(self._watch_desired(), name="what runs want")
        self._watcher.add_done_callback(self._note_end)

    async def await_ready(self, name: str, deadline_s: float = READY_S) -> None:
        """Waits until a child serves. Raises DeadlineMissed, or GivenUp with the end of its log."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if self.failure.done():
                raise self.failure.result()
            child = self.children.get(name)
            if child is not None and child.state == "ready":
                return
            await asyncio.sleep(0.02)
        raise DeadlineMissed(f"{name} did not serve within {deadline_s:.0f} s{self._why(name)}")

    def _why(self, name: str) -> str:
        """What a child that does not serve said last."""
        child, log_file = self.children.get(name), self.fleet.state.log(name)
        last = child.tail(1).strip() if child is not None else ""
        ended = f" and ended {len(child.exits)} times" if child is not None and child.exits else ""
        return (
            f"{ended}; its last words: {last} ({log_file})" if last else f"{ended}; see {log_file}"
        )

    async def _keep(self, child: Child) -> None:
        self.children[child.name] = child
        self._wanted.add(child.name)
        keeper = asyncio.create_task(self._keeper(child), name=f"keep-{child.name}")
        keeper.add_done_callback(self._note_end)
        self._keepers[child.name] = keeper

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        """A loop that ends by an error nobody foresaw must not leave a system behind that waits for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._stopping and not self.failure.done():
            self.failure.set_result(
                GivenUp(f"{task.get_name()} failed: {type(error).__name__}: {error}")
            )

    def _keeps(self, child: Child) -> bool:
        return (
            not self._stopping
            and child.name in self._wanted
            and self.children.get(child.name) is child
        )

    async def _keeper(self, child: Child) -> None:
        """One child's life: ready, exit, back-off, again; until it is not wanted or is given up."""
        while self._keeps(child):
            await self._live(child)
            if not self._keeps(child):
                break
            child.note_progress(
                await self.store.progress(child.run_id) if self.store and child.run_id else None
            )
            delay = self._delay_s(child)
            what = "given up" if delay is None else f"again in {delay:.1f} s"
            log.warning(
                "%s ended with status %d; %s%s",
                child.name,
                child.last_status,
                what,
                child.last_words(),
            )
            if delay is None:
                return await self._give_up(child)
            child.state = "waiting"
            await self._report(child, rs.PROCESS_EVENT_EXITED)
            await asyncio.sleep(delay)
        child.state = "stopped"

    async def _live(self, child: Child) -> None:
        """From its start to its end."""
        if child.run_id and not can_listen(HOST, int(child.health.rpartition(":")[2] or 0)):
            self._move(child)
        try:
            await child.start()
        except OSError as error:  # no memory, no process, no room for its log
            log.error("cannot start %s: %s", child.name, error)
            return child.ended(CANNOT_START)
        if not self._keeps(child):  # it was given up while it was being made
            return await child.stop(LOADING_GRACE_S)
        watching = asyncio.create_task(self._watch(child), name=f"watch-{child.name}")
        watching.add_done_callback(self._note_end)
        try:
            await self._report(child, rs.PROCESS_EVENT_STARTED)
            await child.wait()
        finally:
            await cancelled([watching])

    def _delay_s(self, child: Child) -> float | None:
        if child.service != "nats" and child.bad_inputs >= 2:
            return None  # it says that its input is wrong; trying again cannot help
        return self._backoff.delay_s(child.exits, time.monotonic(), child.fruitless)

    async def _give_up(self, child: Child) -> None:
        child.state = "given up"
        if not child.run_id and not self.failure.done():
            last = child.tail() or f"its log {child.log} says nothing (is the disk full?)"
            self.failure.set_result(
                GivenUp(f"{child.name} ended {len(child.exits)} times and was given up:\n{last}")
            )
        while not await self._report(child, rs.PROCESS_EVENT_GIVEN_UP, 30.0) and self._keeps(child):
            # the run waits for ever if nobody hears that it has no learner any more
            await asyncio.sleep(1.0)

    def _move(self, child: Child) -> None:
        """Gives a process of a run another port; whoever asks it reads from the store where it listens."""
        address = f"{HOST}:{free_port(taken=self._ports())}"
        log.warning(
            "%s: %s is taken by somebody else; it listens at %s now",
            child.name,
            child.health,
            address,
        )
        child.env, child.health = child.env | {"BANYAN_LISTEN": address}, address

    async def _watch(self, child: Child) -> None:
        """Marks a child ready when it first serves, and ends it once it hangs; its keeper starts it again."""
        if not child.health:
            return await self._ready(child)
        async with contextlib.aclosing(probe_of(child)) as probe:
            why = await watched(probe, child.service, self._patience, lambda: self._ready(child))
        if self._keeps(child):
            log.warning("%s hangs: %s; it is ended", child.name, why)
            child.note(f"it hung and was ended: {why}")
            await child.end(HUNG_GRACE_S)

    async def _ready(self, child: Child) -> None:
        child.state = "ready"
        await self._report(child, rs.PROCESS_EVENT_READY)

    def _save(self) -> None:
        """Writes processes.json, which `banyan ps` reads."""
        rows = [
            {"service": c.service, "pid": c.pid, "state": c.state, "run": c.run_id}
            for c in self.children.values()
        ]
        partial = self.fleet.state.path / "processes.json.partial"
        try:
            partial.write_text(json.dumps(rows))
            partial.rename(self.fleet.state.path / "processes.json")
        except OSError as error:
            log.warning("cannot write %s: %s", partial, error.strerror)

    async def _report(
        self, child: Child, event: rs.ProcessEvent.ValueType, patience_s: float = 0.0
    ) -> bool:
        """Whether the store heard it; a store that is down hears of the next event."""
        self._save()
        return (
            not self.store or not child.run_id or await self.store.report(child, event, patience_s)
        )

    # -- what runs want --

    async def _watch_desired(self) -> None:
        assert self.store is not None
        revision = 0
        while True:
            try:
                answer = await self.store.desired(revision)
                if answer.revision != revision:
                    await self._reconcile(answer.processes)
                    await self._share_out()
                    revision = answer.revision
            except TemporaryError as error:
                log.warning("cannot read what is wanted: %s", error)
                await asyncio.sleep(0.5)

    async def _reconcile(self, processes: "Iterable[rs.DesiredProcess]") -> None:
        """Has each process brought to what is wanted of it; none waits for another's slow end."""
        self._desired = {
            f"{p.service}-{p.run_id}-{i}": (p, i) for p in processes for i in range(p.count)
        }
        there = {
            child.name
            for child in self.children.values()
            if child.run_id and child.name in self._wanted
        }
        for name in {*self._desired, *there} - self._settling.keys():
            self._settling[name] = asyncio.create_task(
                self._settle(name), name=f"start and stop {name}"
            )
            self._settling[name].add_done_callback(self._note_end)

    async def _share_out(self) -> None:
        """Tells the processes of all runs how many threads each may use, now that other runs begin or end beside them."""
        for name, (process, _) in list(self._desired.items()):
            try:
                threads, _ = await self._shares(process)
            except NotFound:  # what starts it says so
                continue
            try:
                cores.write(self.fleet.state.threads(name), threads)
            except OSError as error:
                log.warning(
                    "cannot write %s: %s; %s keeps its threads",
                    self.fleet.state.threads(name),
                    error.strerror,
                    name,
                )

    async def _settle(self, name: str) -> None:
        """Starts one process or stops it, until what is there is what is wanted, also where that changes meanwhile."""
        try:
            while not self._stopping and (name in self._desired) != (name in self._wanted):
                if name not in self._desired:
                    self._wanted.discard(name)
                    await self.children[name].stop(grace_s(self.children[name]))
                    self.fleet.state.threads(name).unlink(missing_ok=True)
                elif (worker := await self._worker(*self._desired[name])) and name in self._desired:
                    await self._keep(worker)
        finally:
            del self._settling[name]

    async def _worker(self, process: rs.DesiredProcess, replica: int) -> Child | None:
        """A process of a run, ready to be started; None while the store does not say how."""
        try:
            threads, ranks = await self._shares(process)
        except TemporaryError as error:
            log.warning("cannot read the recipe of run %s: %s", process.run_id, error)
            return await asyncio.sleep(0.5, None)
        port = free_port(taken=self._ports())
        return self.fleet.worker(process.run_id, process.service, replica, threads, port, ranks)

    def _ports(self) -> set[int]:
        """Of all its processes, also of those that do not listen yet."""
        asked = (child.health.rpartition(":")[2] for child in self.children.values())
        return {*self.fleet.state.ports.values(), *(int(port) for port in asked if port)}

    async def _shares(self, process: rs.DesiredProcess) -> tuple[int, int]:
        """Threads of a process, and ranks that the run's learner is to have."""
        assert self.store is not None
        recipe = await self.store.recipe(process.run_id)
        resources, staleness = recipe["resources"], recipe["control"]["max_staleness"]
        # The bits of a deterministic run depend on the number of threads, so they must not depend on who runs beside it.
        runs = (
            1
            if recipe.get("deterministic")
            else len({wanted.run_id for wanted, _ in self._desired.values()})
        )
        threads = threads_for(
            process.service, resources["threads"], staleness, resources["rollout_nodes"], runs
        )
        return threads, resources.get("learner_ranks", 1)

    # -- stop --

    async def stop(self) -> None:
        """In order: gateway takes no new trees, rollout, verifier, learner (checkpoint), treestore, nats."""
        self._stopping = True
        await cancelled([*([self._watcher] if self._watcher else []), *self._settling.values()])
        # it never served: nothing is under way, and somebody waits for his prompt
        if self._watcher is None:
            await asyncio.gather(*(c.stop(UNBEGUN_GRACE_S) for c in self.children.values()))
        for service in STOP_ORDER:
            children = [c for c in self.children.values() if c.service == service]
            await asyncio.gather(*(c.stop(grace_s(c)) for c in children))
        await cancelled(list(self._keepers.values()))
        # what was just being started
        await asyncio.gather(*(c.stop(LOADING_GRACE_S) for c in self.children.values()))
        self._clear_shared_memory()
        self._save()
        if self.store is not None:
            await self.store.close()

    def _clear_shared_memory(self) -> None:
        """Removes what a killed learner left there."""
        for run_id in {c.run_id for c in self.children.values() if c.service == "learner"}:
            shutil.rmtree(SHARED_MEMORY / f"banyan-{run_id}", ignore_errors=True)

    def kill(self) -> None:
        """Ends all of it at once: the second Ctrl-C."""
        self._stopping = True
        for child in self.children.values():
            child.signal(signal.SIGKILL)
        self._clear_shared_memory()
