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

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from banyan.errors import BanyanError, DeadlineMissed, TemporaryError
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis import rpc
from services.chassis.nats_server import free_port
from services.chassis.process import cancelled
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.fleet import BASE, LOADING_GRACE_S, STOP_ORDER, Fleet, grace_s, threads_for
from services.supervisor.runstore import RunStore

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
READY_S = 90.0
UNBEGUN_GRACE_S = 1.0
CANNOT_START = 126  # as shells say it


class GivenUp(BanyanError):
    """A service of all runs ended too often; the message holds the end of its log."""

    reason = "GIVEN_UP"


class Supervisor:
    """Keeps the processes of one state folder. `failure` resolves when a service of all runs is given up."""

    def __init__(self, fleet: Fleet, nats: Callable[[], Awaitable[Child]], backoff: Backoff | None = None) -> None:
        self.fleet = fleet
        self._nats = nats
        self._backoff = backoff or Backoff()
        self.children: dict[str, Child] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._wanted: set[str] = set()
        self._stopping = False
        self._watcher: asyncio.Task[None] | None = None
        self._store: RunStore | None = None
        self.failure: asyncio.Future[BanyanError] = asyncio.get_running_loop().create_future()

    # -- start --

    async def start(self) -> None:
        """Broker, then the services of all runs; returns when all of them serve."""
        await self._keep(await self._nats())
        await asyncio.sleep(0)
        for service in BASE:
            await self._keep(self.fleet.base(service))
        await asyncio.gather(*(self.await_ready(service) for service in BASE))
        self._store = RunStore(self.fleet.state.address("treestore"), self.fleet.state.secret)
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
        return f"{ended}; its last words: {last} ({log_file})" if last else f"{ended}; see {log_file}"

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
            self.failure.set_result(GivenUp(f"{task.get_name()} failed: {type(error).__name__}: {error}"))

    def _keeps(self, child: Child) -> bool:
        return not self._stopping and child.name in self._wanted and self.children.get(child.name) is child

    async def _keeper(self, child: Child) -> None:
        """One child's life: ready, exit, back-off, again; until it is not wanted or is given up."""
        while self._keeps(child):
            await self._live(child)
            if not self._keeps(child):
                break
            child.note_progress(await self._store.progress(child.run_id) if self._store and child.run_id else None)
            delay = self._delay_s(child)
            what = "given up" if delay is None else f"again in {delay:.1f} s"
            log.warning("%s ended with status %d; %s%s", child.name, child.last_status, what, child.last_words())
            if delay is None:
                return await self._give_up(child)
            child.state = "waiting"
            await self._report(child, rs.PROCESS_EVENT_EXITED)
            await asyncio.sleep(delay)
        child.state = "stopped"

    async def _live(self, child: Child) -> None:
        """From its start to its end."""
        try:
            await child.start()
        except OSError as error:  # no memory, no process, no room for its log
            log.error("cannot start %s: %s", child.name, error)
            return child.ended(CANNOT_START)
        if not self._keeps(child):  # it was given up while it was being made
            return await child.stop(LOADING_GRACE_S)
        probing = asyncio.create_task(self._probe(child))
        try:
            await self._report(child, rs.PROCESS_EVENT_STARTED)
            await child.wait()
        finally:
            probing.cancel()

    def _delay_s(self, child: Child) -> float | None:
        if child.service != "nats" and child.bad_inputs >= 2:
            return None  # it says that its input is wrong; trying again cannot help
        return self._backoff.delay_s(child.exits, time.monotonic(), child.fruitless)

    async def _give_up(self, child: Child) -> None:
        child.state = "given up"
        if not child.run_id and not self.failure.done():
            last = child.tail() or f"its log {child.log} says nothing (is the disk full?)"
            self.failure.set_result(GivenUp(f"{child.name} ended {len(child.exits)} times and was given up:\n{last}"))
        while not await self._report(child, rs.PROCESS_EVENT_GIVEN_UP, 30.0) and self._keeps(child):
            await asyncio.sleep(1.0)  # the run waits for ever if nobody hears that it has no learner any more

    async def _probe(self, child: Child) -> None:
        """Marks a child ready when its health service says SERVING."""
        if not child.health:
            child.state = "ready"
            self._save()
            return
        async with rpc.channel(child.health) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                with contextlib.suppress(grpc.RpcError):
                    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        break
                await asyncio.sleep(0.05)
        child.state = "ready"
        await self._report(child, rs.PROCESS_EVENT_READY)

    def _save(self) -> None:
        """Writes processes.json, which `banyan ps` reads."""
        rows = [{"service": c.service, "pid": c.pid, "state": c.state, "run": c.run_id} for c in self.children.values()]
        partial = self.fleet.state.path / "processes.json.partial"
        try:
            partial.write_text(json.dumps(rows))
            partial.rename(self.fleet.state.path / "processes.json")
        except OSError as error:
            log.warning("cannot write %s: %s", partial, error.strerror)

    async def _report(self, child: Child, event: rs.ProcessEvent.ValueType, patience_s: float = 0.0) -> bool:
        """Whether the store heard it; a store that is down hears of the next event."""
        self._save()
        return not self._store or not child.run_id or await self._store.report(child, event, patience_s)

    # -- what runs want --

    async def _watch_desired(self) -> None:
        assert self._store is not None
        revision = 0
        while True:
            try:
                answer = await self._store.desired(revision)
                if answer.revision != revision:
                    await self._reconcile(answer.processes)
                    revision = answer.revision
            except TemporaryError as error:
                log.warning("cannot read what is wanted: %s", error)
                await asyncio.sleep(0.5)

    async def _reconcile(self, processes: "Iterable[rs.DesiredProcess]") -> None:
        """Starts what is wanted and missing, stops what is there and not wanted."""
        wanted = {f"{p.service}-{p.run_id}-{i}": (p, i) for p in processes for i in range(p.count)}
        extra = [c for c in self.children.values() if c.run_id and c.name not in wanted and c.name in self._wanted]
        for child in extra:
            self._wanted.discard(child.name)
        await asyncio.gather(*(child.stop(grace_s(child)) for child in extra))
        for name, (process, replica) in wanted.items():
            if name not in self._wanted and not self._stopping:
                threads, ranks = await self._shares(process)
                port = free_port(taken=self._ports())
                worker = self.fleet.worker(process.run_id, process.service, replica, threads, port, ranks)
                await self._keep(worker)

    def _ports(self) -> set[int]:
        """Of all its processes, also of those that do not listen yet."""
        asked = (child.health.rpartition(":")[2] for child in self.children.values())
        return {*self.fleet.state.ports.values(), *(int(port) for port in asked if port)}

    async def _shares(self, process: rs.DesiredProcess) -> tuple[int, int]:
        """Threads of a process, and ranks that the run's learner is to have."""
        assert self._store is not None
        recipe = await self._store.recipe(process.run_id)
        resources, staleness = recipe["resources"], recipe["control"]["max_staleness"]
        threads = threads_for(process.service, resources["threads"], staleness, resources["rollout_nodes"])
        return threads, resources.get("learner_ranks", 1)

    # -- stop --

    async def stop(self) -> None:
        """In order: gateway takes no new trees, rollout, verifier, learner (checkpoint), treestore, nats."""
        self._stopping = True
        await cancelled([self._watcher] if self._watcher else [])
        if self._watcher is None:  # it never served: nothing is under way, and somebody waits for his prompt
            await asyncio.gather(*(c.stop(UNBEGUN_GRACE_S) for c in self.children.values()))
        for service in STOP_ORDER:
            children = [c for c in self.children.values() if c.service == service]
            await asyncio.gather(*(c.stop(grace_s(c)) for c in children))
        await cancelled(list(self._keepers.values()))
        await asyncio.gather(*(c.stop(LOADING_GRACE_S) for c in self.children.values()))  # what was just being started
        self._clear_shared_memory()
        self._save()
        if self._store is not None:
            await self._store.close()

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
