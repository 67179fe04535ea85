"""The only parent of all processes: starts them, restarts those that die, stops all in order."""

import asyncio
import contextlib
import logging
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from banyan.errors import BanyanError, DeadlineMissed
from banyan.reasons import Reason
from banyan.runtime.ports import free_port
from banyan.runtime.state_folder import HOST
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.process.process import cancelled
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.desired import DesiredProcesses
from services.supervisor.fleet import (
    BASE,
    HUNG_GRACE_S,
    LOADING_GRACE_S,
    STOP_ORDER,
    ProcessCommands,
    grace_s,
)
from services.supervisor.probes import probe_of
from services.supervisor.process_list import ProcessList
from services.supervisor.runstore import RunStore
from services.supervisor.state import can_listen
from services.supervisor.warm import WarmProcess
from services.supervisor.watch import Patience, watched

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
READY_S = 90.0
UNBEGUN_GRACE_S = 1.0
CANNOT_START = 126  # the exit status that shells use


class GivenUp(BanyanError):
    """A service of all runs exited too often; the message holds the end of its log."""

    reason = Reason.GIVEN_UP


class Supervisor:
    """Keeper of the processes of one state folder.

    `failure` resolves when a service of all runs is given up.
    """

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
        self.wanted: set[str] = set()
        self.stopping = False
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._processes = ProcessList(fleet.state.path)
        self._warm = WarmProcess(fleet.state.log("torch"))
        self._desired: DesiredProcesses | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.store: RunStore | None = None
        self.failure: asyncio.Future[BanyanError] = asyncio.get_running_loop().create_future()

    # -- start --

    async def start(self) -> None:
        """Start the broker and the services of all runs; return when all of them serve."""
        await self.keep(await self._nats())
        await asyncio.sleep(0)
        for service in BASE:
            await self.keep(self.fleet.base(service))
        await asyncio.gather(*(self.await_ready(service) for service in BASE))
        self.store = RunStore(self.fleet.state.address("treestore"), self.fleet.state.secret)
        self._desired = DesiredProcesses(self, self.fleet, self.store)
        self._watcher = asyncio.create_task(self._desired.watch(), name="what runs want")
        self._watcher.add_done_callback(self.fail_on_error)

    async def await_ready(self, name: str, deadline_s: float = READY_S) -> None:
        """Wait until a child serves. Raise DeadlineMissed, or GivenUp with the end of its log."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if self.failure.done():
                raise self.failure.result()
            child = self.children.get(name)
            if child is not None and child.state == "ready":
                return
            await asyncio.sleep(0.02)
        why = self._why_not_ready(name)
        raise DeadlineMissed(f"{name} did not serve within {deadline_s:.0f} s{why}")

    def _why_not_ready(self, name: str) -> str:
        child, log_file = self.children.get(name), self.fleet.state.log(name)
        last = child.tail(1).strip() if child is not None else ""
        ended = f" and ended {len(child.exits)} times" if child is not None and child.exits else ""
        if not last:
            return f"{ended}; see {log_file}"
        return f"{ended}; its last words: {last} ({log_file})"

    # -- keeping --

    async def keep(self, child: Child) -> None:
        """Start a child, and start it again whenever it ends."""
        self.children[child.name] = child
        self.wanted.add(child.name)
        keeper = asyncio.create_task(self._keep(child), name=f"keep-{child.name}")
        keeper.add_done_callback(self.fail_on_error)
        self._keepers[child.name] = keeper

    def fail_on_error(self, task: "asyncio.Task[None]") -> None:
        """Set `failure` if a background task ended by an error: the system must not wait for it."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.stopping and not self.failure.done():
            cause = f"{task.get_name()} failed: {type(error).__name__}: {error}"
            self.failure.set_result(GivenUp(cause))

    def _keeps(self, child: Child) -> bool:
        current = self.children.get(child.name) is child
        return current and child.name in self.wanted and not self.stopping

    async def _keep(self, child: Child) -> None:
        """Run one child again and again, until it is not wanted any more or is given up."""
        while self._keeps(child):
            await self._run_once(child)
            if not self._keeps(child):
                break
            progress = None
            if self.store and child.run_id:
                progress = await self.store.progress(child.run_id)
            child.record_progress(progress)
            delay = self._delay_s(child)
            outcome = "given up" if delay is None else f"again in {delay:.1f} s"
            log.warning(
                "%s ended with status %d; %s%s",
                child.name,
                child.last_status,
                outcome,
                child.last_words(),
            )
            if delay is None:
                return await self._give_up(child)
            child.state = "waiting"
            await self._report(child, rs.PROCESS_EVENT_EXITED)
            await asyncio.sleep(delay)
        child.state = "stopped"
        self.fleet.state.metrics(child.name).unlink(missing_ok=True)  # a killed one leaves it

    async def _run_once(self, child: Child) -> None:
        """Start a child and wait for its end."""
        if child.run_id and not can_listen(HOST, int(child.health.rpartition(":")[2] or 0)):
            self._change_port(child)
        try:
            await self._start(child)
        except OSError as error:  # no memory, no process, no space for its log
            log.error("cannot start %s: %s", child.name, error)
            return child.record_exit(CANNOT_START)
        if not self._keeps(child):  # given up while it was being started
            return await child.stop(LOADING_GRACE_S)
        watching = asyncio.create_task(self._watch(child), name=f"watch-{child.name}")
        watching.add_done_callback(self.fail_on_error)
        try:
            await self._report(child, rs.PROCESS_EVENT_STARTED)
            await child.wait()
            self._processes.write(self.children.values())  # the store may be slow to hear of it
        finally:
            await cancelled([watching])

    async def _start(self, child: Child) -> None:
        """Start a child's process. Raise OSError."""
        forked = await self._warm.start(child) if child.warm else None
        if forked is not None:
            child.started_as(forked)
        elif self._keeps(child):  # not if all is being stopped
            await child.start()

    def _delay_s(self, child: Child) -> float | None:
        if child.service != "nats" and child.bad_inputs >= 2:
            return None  # it reports that its input is wrong: another start cannot help
        return self._backoff.delay_s(child.exits, time.monotonic(), child.fruitless)

    async def _give_up(self, child: Child) -> None:
        child.state = "given up"
        if not child.run_id and not self.failure.done():
            last = child.tail() or f"its log {child.log} says nothing (is the disk full?)"
            cause = f"{child.name} ended {len(child.exits)} times and was given up:\n{last}"
            self.failure.set_result(GivenUp(cause))
        while not await self._report(child, rs.PROCESS_EVENT_GIVEN_UP, 30.0) and self._keeps(child):
            # Until the store knows that the learner is gone, the run would wait for ever.
            await asyncio.sleep(1.0)

    def _change_port(self, child: Child) -> None:
        """Give a process of a run another port. Its callers read its address from the store."""
        address = f"{HOST}:{free_port(taken=self.used_ports())}"
        log.warning(
            "%s: %s is taken by another process; it listens at %s now",
            child.name,
            child.health,
            address,
        )
        child.env, child.health = child.env | {"BANYAN_LISTEN": address}, address

    def used_ports(self) -> set[int]:
        """Return the ports of all processes, also of those that do not listen yet."""
        ports = (child.health.rpartition(":")[2] for child in self.children.values())
        return {*self.fleet.state.ports.values(), *(int(port) for port in ports if port)}

    async def _watch(self, child: Child) -> None:
        """Mark a child ready when it first serves, and end it once it hangs, to be restarted."""
        if not child.health:
            return await self._ready(child)
        async with contextlib.aclosing(probe_of(child)) as probe:
            why = await watched(probe, child.service, self._patience, lambda: self._ready(child))
        if self._keeps(child):
            log.warning("%s hangs: %s; it is ended", child.name, why)
            child.append_to_log(f"it hung and was ended: {why}")
            await child.end(HUNG_GRACE_S)

    async def _ready(self, child: Child) -> None:
        child.state = "ready"
        await self._report(child, rs.PROCESS_EVENT_READY)

    async def _report(
        self, child: Child, event: rs.ProcessEvent.ValueType, patience_s: float = 0.0
    ) -> bool:
        """Report an event of a process; return False if the store is down.

        A store that is down gets the next event only.
        """
        self._processes.write(self.children.values())
        if not self.store or not child.run_id:
            return True
        return await self.store.report(child, event, patience_s)

    # -- stop --

    async def stop(self) -> None:
        """Stop all processes in the order of STOP_ORDER: each may need those that stop after it."""
        self.stopping = True
        settling = self._desired.settling if self._desired else []
        await cancelled([*([self._watcher] if self._watcher else []), *settling])
        if self._watcher is None:
            # The system never served: nothing is under way, and the user waits for the prompt.
            await asyncio.gather(*(c.stop(UNBEGUN_GRACE_S) for c in self.children.values()))
        await self._warm.end()
        for service in STOP_ORDER:
            children = [c for c in self.children.values() if c.service == service]
            await asyncio.gather(*(c.stop(grace_s(c)) for c in children))
        await cancelled(list(self._keepers.values()))
        # Children that were being started during the loop above.
        await asyncio.gather(*(c.stop(LOADING_GRACE_S) for c in self.children.values()))
        self._clear_shared_memory()
        self._processes.write(self.children.values())
        if self.store is not None:
            await self.store.close()

    def _clear_shared_memory(self) -> None:
        """Remove the weights that a killed learner left in shared memory."""
        for run_id in {c.run_id for c in self.children.values() if c.service == "learner"}:
            shutil.rmtree(SHARED_MEMORY / f"banyan-{run_id}", ignore_errors=True)

    def kill(self) -> None:
        """Kill all processes at once, as the second Ctrl-C does."""
        self.stopping = True
        for child in self.children.values():
            child.signal(signal.SIGKILL)
        self._warm.kill()
        self._clear_shared_memory()
