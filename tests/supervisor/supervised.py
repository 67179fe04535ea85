"""A supervisor of plain Python processes, over a store that the test controls."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from banyan.errors import NotFound, TemporaryError
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1.runstore_service_pb2_grpc import (
    RunStoreServiceServicer,
    add_RunStoreServiceServicer_to_server,
)
from services.chassis.rpc import rpc
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.fleet import ProcessCommands
from services.supervisor.state import StateFolder
from services.supervisor.supervisor import Supervisor

SLEEPS = "import time; time.sleep(60)"
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    " print('deaf', flush=True); time.sleep(60)"
)
RECIPE = (
    '{"resources": {"rollout_nodes": 1, "threads": 1, "engine": "scripted"},'
    ' "control": {"max_staleness": 0}}'
)


class FakeRunStore(RunStoreServiceServicer):
    """A store that wants the processes given to `want` and keeps the reports.

    Processes are named `service` or `service@run`. The next `deaf` reports are refused.
    """

    def __init__(self) -> None:
        self.wanted: list[tuple[str, int]] = []
        self.revision, self.step, self.deaf = 1, 0, 0
        self.unknown_run = False
        self.recipe = RECIPE
        self.reports: list[rs.ReportProcessRequest] = []
        self.asked = asyncio.Event()

    def want(self, *wanted: tuple[str, int]) -> None:
        self.wanted, self.revision = list(wanted), self.revision + 1

    async def WatchDesired(self, request: Any, context: Any) -> rs.WatchDesiredResponse:
        self.asked.set()
        while request.revision == self.revision:
            await asyncio.sleep(0.01)
        processes = [
            rs.DesiredProcess(
                run_id=s.partition("@")[2] or "r", service=s.partition("@")[0], count=n
            )
            for s, n in self.wanted
        ]
        return rs.WatchDesiredResponse(revision=self.revision, processes=processes)

    async def ReadRun(self, request: Any, context: Any) -> rs.ReadRunResponse:
        if self.unknown_run:
            raise NotFound("there is no run 'r'")
        return rs.ReadRunResponse(run=rs.Run(run_id="r", recipe_json=self.recipe))

    async def ReadProgress(self, request: Any, context: Any) -> rs.ReadProgressResponse:
        return rs.ReadProgressResponse(step=self.step)

    async def ReportProcess(
        self, request: rs.ReportProcessRequest, context: Any
    ) -> rs.ReportProcessResponse:
        if self.deaf:
            self.deaf -= 1
            raise TemporaryError("the database cannot write: No space left on device")
        self.reports.append(request)
        return rs.ReportProcessResponse()

    def events(self) -> list[int]:
        return [r.event for r in self.reports]


class PlainProcesses(ProcessCommands):
    """Plain Python programs instead of services; `codes` by service."""

    codes: dict[str, str]

    def base(self, service: str) -> Child:
        return self._plain(service, service)

    def worker(self, run_id: str, service: str, replica: int, **_: Any) -> Child:
        child = self._plain(f"{service}-{run_id}-{replica}", service)
        child.run_id, child.replica = run_id, replica
        return child

    def _plain(self, name: str, service: str) -> Child:
        command = [sys.executable, "-c", self.codes.get(service, SLEEPS)]
        return Child(name, service, command, {}, self.state.log(name))


def change_workers(supervisor: Supervisor, change: Callable[[Child], None]) -> None:
    """Apply a change to every process of a run before it is started."""
    plain = supervisor.fleet.worker

    def changed(*arguments: Any, **named: Any) -> Child:
        child = plain(*arguments, **named)
        change(child)
        return child

    object.__setattr__(supervisor.fleet, "worker", changed)


def supervisor_of(state: StateFolder, fleet: ProcessCommands, backoff: Backoff) -> Supervisor:
    """Return a supervisor whose broker is a process that sleeps."""

    async def nats() -> Child:
        return Child("nats", "nats", [sys.executable, "-c", SLEEPS], {}, state.log("nats"))

    return Supervisor(fleet, nats, backoff)


@contextlib.asynccontextmanager
async def supervised(
    tmp_path: Path, store: FakeRunStore, codes: dict[str, str], **backoff: Any
) -> AsyncIterator[Supervisor]:
    """Run a supervisor over the store; it is started and stopped with the block."""
    server = await rpc.serve(
        "127.0.0.1:0",
        [lambda s: add_RunStoreServiceServicer_to_server(store, s)],
        ["banyan.v1.RunStoreService"],
    )
    state = StateFolder.open(tmp_path / "s")
    state.ports["treestore"] = int(server.address.rsplit(":", 1)[1])
    fleet = PlainProcesses(state)
    object.__setattr__(fleet, "codes", codes)
    supervisor = supervisor_of(state, fleet, Backoff(first_s=0.05, **backoff))
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()
        await server.stop(0)


def pids(supervisor: Supervisor, service: str) -> list[int]:
    """Return the process ids of a service's running processes."""
    return [c.pid for c in supervisor.children.values() if c.service == service and c.running]


def workers(supervisor: Supervisor, service: str = "") -> list[Child]:
    """Return the processes of runs, or those of one service."""
    children = [child for child in supervisor.children.values() if child.run_id]
    return [child for child in children if service in ("", child.service)]


def alive(pid: int) -> bool:
    """Return True if a process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
