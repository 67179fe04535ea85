"""The processes that runs want, started and stopped as the store says, and their cores."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from banyan.errors import NotFound, TemporaryError
from banyan.runtime.ports import free_port
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.process import cores
from services.supervisor.child import Child
from services.supervisor.fleet import ProcessCommands, grace_s, threads_for
from services.supervisor.runstore import RunStore

log = logging.getLogger(__name__)

_RETRY_S = 0.5


class Keeper(Protocol):
    """The owner of the child processes.

    children: all children, by name, also those that are not wanted any more.
    wanted: names of the children that are started again when they end.
    stopping: True once the whole system is being stopped.
    """

    children: dict[str, Child]
    wanted: set[str]
    stopping: bool

    async def keep(self, child: Child) -> None:
        """Start a child, and start it again whenever it ends."""
        ...

    def used_ports(self) -> set[int]:
        """Return the ports of all processes, also of those that do not listen yet."""
        ...

    def fail_on_error(self, task: "asyncio.Task[None]") -> None:
        """Report the failure of a background task; a callback for `add_done_callback`."""
        ...


class Replica(NamedTuple):
    """A process of a run, numbered among those of its kind."""

    process: rs.DesiredProcess
    number: int

    @property
    def name(self) -> str:
        return f"{self.process.service}-{self.process.run_id}-{self.number}"


class Needs(NamedTuple):
    """Needs of a process, by its recipe: its threads, the learner's ranks, the nodes' engine."""

    threads: int
    ranks: int
    engine: str


class DesiredProcesses:
    """Brings the processes of runs to the state that the store describes."""

    def __init__(self, keeper: Keeper, fleet: ProcessCommands, store: RunStore) -> None:
        self._keeper, self._fleet, self._store = keeper, fleet, store
        self._desired: dict[str, Replica] = {}
        self._settling: dict[str, asyncio.Task[None]] = {}

    @property
    def settling(self) -> "list[asyncio.Task[None]]":
        """Tasks that are starting or stopping a process."""
        return list(self._settling.values())

    async def watch(self) -> None:
        """Follow the store until cancelled."""
        revision = 0
        while True:
            try:
                answer = await self._store.desired(revision)
                if answer.revision != revision:
                    self._reconcile(answer.processes)
                    await self._divide_cores()
                    revision = answer.revision
            except TemporaryError as error:
                log.warning("cannot read what is wanted: %s", error)
                await asyncio.sleep(_RETRY_S)

    def _reconcile(self, processes: Iterable[rs.DesiredProcess]) -> None:
        """Settle each process in a task of its own, so that none waits for another's slow end."""
        replicas = [Replica(process, i) for process in processes for i in range(process.count)]
        self._desired = {replica.name: replica for replica in replicas}
        kept = {
            child.name
            for child in self._keeper.children.values()
            if child.run_id and child.name in self._keeper.wanted
        }
        for name in {*self._desired, *kept} - self._settling.keys():
            task = asyncio.create_task(self._settle(name), name=f"start and stop {name}")
            task.add_done_callback(self._keeper.fail_on_error)
            self._settling[name] = task

    async def _settle(self, name: str) -> None:
        """Start or stop one process until it is as desired, even if that changes meanwhile."""
        keeper = self._keeper
        try:
            while not keeper.stopping and (name in self._desired) != (name in keeper.wanted):
                if name not in self._desired:
                    keeper.wanted.discard(name)
                    await keeper.children[name].stop(grace_s(keeper.children[name]))
                    with contextlib.suppress(OSError):  # the process that read it has ended
                        self._fleet.state.threads(name).unlink()
                elif (worker := await self._worker(self._desired[name])) and name in self._desired:
                    await keeper.keep(worker)
        finally:
            del self._settling[name]

    async def _worker(self, replica: Replica) -> Child | None:
        """Return a process of a run, ready to be started; None if the store cannot be read now."""
        process = replica.process
        try:
            needs = await self._needs(process)
        except TemporaryError as error:
            log.warning("cannot read the recipe of run %s: %s", process.run_id, error)
            return await asyncio.sleep(_RETRY_S, None)
        return self._fleet.worker(
            process.run_id,
            process.service,
            replica.number,
            threads=needs.threads,
            port=free_port(taken=self._keeper.used_ports()),
            ranks=needs.ranks,
            engine=needs.engine,
        )

    async def _divide_cores(self) -> None:
        """Write each process's number of threads, which changes with the other runs (ADR 055)."""
        for name, replica in list(self._desired.items()):
            try:
                threads = (await self._needs(replica.process)).threads
            except NotFound:  # reported by the task that starts the process
                continue
            path = self._fleet.state.threads(name)
            try:
                cores.write(path, threads)
            except OSError as error:
                log.warning("cannot write %s: %s; %s keeps its threads", path, error.strerror, name)

    async def _needs(self, process: rs.DesiredProcess) -> Needs:
        """Return what a process needs, from the recipe of its run."""
        recipe = await self._store.recipe(process.run_id)
        resources, staleness = recipe["resources"], recipe["control"]["max_staleness"]
        runs = len({replica.process.run_id for replica in self._desired.values()})
        if recipe.get("deterministic"):
            # Its bits depend on the number of threads, so they must not depend on other runs.
            runs = 1
        threads = threads_for(
            process.service,
            resources["threads"],
            max_staleness=staleness,
            rollout_nodes=resources["rollout_nodes"],
            runs=runs,
        )
        return Needs(threads, resources.get("learner_ranks", 1), resources["engine"])
