"""Starts what is wanted, starts again what dies, stops all of it in order. The only parent of all processes."""

import asyncio
import contextlib
import json
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from banyan.errors import BanyanError, DeadlineMissed, TemporaryError
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from services.chassis import rpc
from services.chassis.nats_server import free_port
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.fleet import BASE, GRACE_S, STOP_ORDER, Fleet, threads_for

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
READY_S = 90.0
WATCH_S = 10.0


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
        self._channel: grpc.aio.Channel | None = None
        self.failure: asyncio.Future[BanyanError] = asyncio.get_running_loop().create_future()

    # -- start --

    async def start(self) -> None:
        """Broker, then the services of all runs; returns when all of them serve."""
        await self._keep(await self._nats())
        await asyncio.sleep(0)
        for service in BASE:
            await self._keep(self.fleet.base(service))
        await asyncio.gather(*(self.await_ready(service) for service in BASE))
        self._channel = rpc.channel(self.fleet.state.address("treestore"))
        self._watcher = asyncio.create_task(self._watch_desired())

    async def await_ready(self, name: str, deadline_s: float = READY_S) -> None:
        """Waits until a child serves. Raises DeadlineMissed, or GivenUp with the end of its log."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            child = self.children.get(name)
            if child is not None and child.state == "ready":
                return
            if child is not None and child.state == "given up":
                raise GivenUp(f"{name} does not start:\n{child.tail()}")
            await asyncio.sleep(0.02)
        raise DeadlineMissed(f"{name} did not serve within {deadline_s:.0f} s; see {self.fleet.state.log(name)}")

    async def _keep(self, child: Child) -> None:
        self.children[child.name] = child
        self._wanted.add(child.name)
        await child.start()
        self._keepers[child.name] = asyncio.create_task(self._keeper(child))

    async def _keeper(self, child: Child) -> None:
        """One child's life: ready, exit, back-off, again; until it is not wanted or is given up."""
        while True:
            probing = asyncio.create_task(self._probe(child))
            await self._report(child, rs.PROCESS_EVENT_STARTED)
            status = await child.wait()
            probing.cancel()
            if self._stopping or child.name not in self._wanted:
                child.state = "stopped"
                return
            delay = self._backoff.delay_s(child.exits, time.monotonic())
            if status == 2 and child.service != "nats" and len(child.exits) >= 2:
                delay = None  # it says that its input is wrong; trying again cannot help
            log.warning(
                "%s ended with status %d; %s",
                child.name,
                status,
                "given up" if delay is None else f"again in {delay:.1f} s",
            )
            if delay is None:
                await self._give_up(child)
                return
            child.state = "waiting"
            await self._report(child, rs.PROCESS_EVENT_EXITED)
            await asyncio.sleep(delay)
            if self._stopping or child.name not in self._wanted:
                child.state = "stopped"
                return
            await child.start()

    async def _give_up(self, child: Child) -> None:
        child.state = "given up"
        await self._report(child, rs.PROCESS_EVENT_GIVEN_UP)
        if not child.run_id and not self.failure.done():
            self.failure.set_result(
                GivenUp(f"{child.name} ended {len(child.exits)} times and was given up:\n{child.tail()}")
            )

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

    async def _report(self, child: Child, event: rs.ProcessEvent.ValueType) -> None:
        """Tells the store; a store that is down hears it at the next event."""
        self._save()
        if self._channel is None or not child.run_id:
            return
        detail = child.tail() if event in (rs.PROCESS_EVENT_EXITED, rs.PROCESS_EVENT_GIVEN_UP) else ""
        patience = 30.0 if event == rs.PROCESS_EVENT_GIVEN_UP else 0.0
        request = rs.ReportProcessRequest(
            run_id=child.run_id,
            service=child.service,
            replica=child.replica,
            pid=child.pid,
            event=event,
            exit_status=child.last_status,
            detail=detail,
        )
        with contextlib.suppress(BanyanError):
            await rpc.call(rs_grpc.RunStoreServiceStub(self._channel).ReportProcess, request, 5.0, patience)

    # -- what runs want --

    async def _watch_desired(self) -> None:
        assert self._channel is not None
        stub = rs_grpc.RunStoreServiceStub(self._channel)
        revision = 0
        while True:
            try:
                request = rs.WatchDesiredRequest(revision=revision, deadline_ms=int(WATCH_S * 1000))
                answer = await rpc.call(stub.WatchDesired, request, WATCH_S + 10.0, 60.0)
            except TemporaryError as error:
                log.warning("cannot read what is wanted: %s", error)
                await asyncio.sleep(0.5)
                continue
            if answer.revision != revision:
                await self._reconcile(answer.processes)
                revision = answer.revision

    async def _reconcile(self, processes: "list[rs.DesiredProcess]") -> None:
        """Starts what is wanted and missing, stops what is there and not wanted."""
        wanted = {f"{p.service}-{p.run_id}-{i}": (p, i) for p in processes for i in range(p.count)}
        extra = [c for c in self.children.values() if c.run_id and c.name not in wanted and c.name in self._wanted]
        for child in extra:
            self._wanted.discard(child.name)
        await asyncio.gather(*(child.stop(GRACE_S[child.service]) for child in extra))
        for name, (process, replica) in wanted.items():
            if name not in self._wanted and not self._stopping:
                threads = await self._threads(process)
                await self._keep(self.fleet.worker(process.run_id, process.service, replica, threads, free_port()))

    async def _threads(self, process: rs.DesiredProcess) -> int:
        assert self._channel is not None
        stub = rs_grpc.RunStoreServiceStub(self._channel)
        answer = await rpc.call(stub.ReadRun, rs.ReadRunRequest(run_id=process.run_id), 10.0, 30.0)
        recipe = json.loads(answer.run.recipe_json)
        nodes, staleness = recipe["resources"]["rollout_nodes"], recipe["control"]["max_staleness"]
        return threads_for(process.service, recipe["resources"]["threads"], staleness, nodes)

    # -- stop --

    async def stop(self) -> None:
        """In order: gateway takes no new trees, rollout, verifier, learner (checkpoint), treestore, nats."""
        self._stopping = True
        if self._watcher is not None:
            self._watcher.cancel()
        for service in STOP_ORDER:
            children = [c for c in self.children.values() if c.service == service]
            await asyncio.gather(*(c.stop(GRACE_S[service]) for c in children))
        for run_id in {c.run_id for c in self.children.values() if c.service == "learner"}:
            shutil.rmtree(SHARED_MEMORY / f"banyan-{run_id}", ignore_errors=True)  # what a killed learner left there
        for keeper in self._keepers.values():
            keeper.cancel()
        self._save()
        if self._channel is not None:
            await self._channel.close(None)

    def kill(self) -> None:
        """Ends all of it at once: the second Ctrl-C."""
        import signal

        self._stopping = True
        for child in self.children.values():
            child.signal(signal.SIGKILL)
