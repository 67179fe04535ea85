"""Session of `banyan train`: the embedded system, the run, the live view, Ctrl-C, the report."""

import asyncio
import contextlib
import functools
import os
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from banyan.cli.invocation import proposed
from banyan.cli.join.instructions import joining
from banyan.cli.render.console import err, out
from banyan.cli.render.live import LiveView, Past
from banyan.cli.render.run_report import print_report
from banyan.cli.train import endings, resume, row_counts, search_path
from banyan.client import Client
from banyan.errors import BanyanError, Refused, TemporaryError
from banyan.reasons import Reason
from banyan.recipe import Recipe
from banyan.runtime.launch import FOLDERS
from banyan.runtime.waiting import Waiting
from banyan.text.printable import printable
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data
from banyan.wire.status import error_of
from services.chassis.process.process import cancelled
from services.chassis.rpc import rpc
from services.supervisor.embedded import embedded
from services.supervisor.supervisor import Supervisor

INTERRUPTED = 130
OPENING_S = 1.0  # time for a run that is being created when Ctrl-C arrives
_NOT_READY = ("new", "starting", "waiting")


class Session:
    """Session that runs one recipe to its end, or continues a run, by default the newest.

    handles_signals: whether Ctrl-C and the like interrupt it. Only a process's main thread can be
        told; elsewhere `interrupt` does it.
    ended: the run as it was when it was last heard of; None if none was begun
    """

    def __init__(
        self,
        state: Path,
        recipe: Recipe | None,
        listen: str,
        path: Sequence[str],
        run_id: str = "",
        *,
        handles_signals: bool = True,
    ) -> None:
        self._handles_signals = handles_signals
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ended: rs.Run | None = None
        self._state, self._recipe, self._listen = state, recipe, listen
        self._wanted, self._resumed = run_id, recipe is None
        self._path = path
        self._extra = {FOLDERS: os.pathsep.join(filter(None, (*path, os.environ.get(FOLDERS))))}
        self._begun = time.monotonic()
        self._interrupted = asyncio.Event()
        self._supervisor: Supervisor | None = None
        # Printed when all services have ended: until then nothing can be started here.
        self._farewell = ""

    async def run(self) -> int:
        """Start everything, follow the run, stop everything; return the exit status."""
        self._loop = asyncio.get_running_loop()
        if self._handles_signals:
            self._handle_signals(self._loop)
        status = await self._within()
        if self._farewell:
            err.print(self._farewell, markup=False, soft_wrap=True)
        return status

    def interrupt(self) -> None:
        """Interrupt it from another thread: pause the run, or if called again, kill all services.

        Before it runs, it does nothing.
        """
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._interrupt)

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        # A closed terminal interrupts, too, unless nohup ignores SIGHUP.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        hangup = () if ignored else (signal.SIGHUP,)
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            loop.add_signal_handler(number, self._on_signal)

    async def _within(self) -> int:
        stack = contextlib.AsyncExitStack()
        try:
            supervisor = await self._start(stack)
            if supervisor is None:
                err.print("stopped before a run was begun")
                return INTERRUPTED
            state = supervisor.fleet.state
            search_path.keep(state.path, self._path)
            out.print(f"page http://{state.address('page')}/", markup=False, soft_wrap=True)
            async with rpc.channel(state.address("gateway"), secret=state.secret) as channel:
                gateway: gw_grpc.GatewayServiceAsyncStub = gw_grpc.GatewayServiceStub(channel)
                run = await self._begin(gateway)
                self.ended = run
                if run is None:
                    err.print("stopped as the run was being begun")
                    return INTERRUPTED
                return await self._follow(gateway, run)
        finally:
            with Waiting("the services end", patient=True):
                await stack.aclose()

    async def _start(self, stack: contextlib.AsyncExitStack) -> Supervisor | None:
        """Return the running system; None if it was interrupted before."""
        logs = self._state / "logs"
        system = embedded(self._state, join_listen=self._listen, extra=self._extra)
        with Waiting(f"starting the services, whose logs are in {printable(str(logs))}"):
            starting = asyncio.create_task(stack.enter_async_context(system))
            interrupted = asyncio.create_task(self._interrupted.wait())
            await asyncio.wait([starting, interrupted], return_when=asyncio.FIRST_COMPLETED)
            interrupted.cancel()
            if self._interrupted.is_set():
                starting.cancel()
                await asyncio.wait([starting])
                return None
        self._supervisor = starting.result()
        return self._supervisor

    def _on_signal(self) -> None:
        again = self._interrupted.is_set()
        self._interrupt()
        if again:
            os._exit(INTERRUPTED)

    def _interrupt(self) -> None:
        if self._interrupted.is_set() and self._supervisor is not None:
            self._supervisor.kill()
        self._interrupted.set()

    # -- the run --

    async def _begin(self, gateway: "gw_grpc.GatewayServiceAsyncStub") -> rs.Run | None:
        """Return the run; None if it was interrupted, and the services outlive that."""
        opening = asyncio.create_task(self._open(gateway))
        interrupted = asyncio.create_task(self._interrupted.wait())
        await asyncio.wait([opening, interrupted], return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        await asyncio.wait([opening], timeout=OPENING_S)
        if opening.done():
            return opening.result()
        opening.cancel()
        await asyncio.wait([opening])
        return None

    async def _open(self, gateway: "gw_grpc.GatewayServiceAsyncStub") -> rs.Run:
        resuming = self._recipe is None  # then runs that are over are needed for messages
        runs = (
            await rpc.call(gateway.ListRuns, gw.ListRunsRequest(live_only=not resuming), 30.0, 10.0)
        ).runs
        if self._recipe is None:
            return await self._resume(gateway, list(runs))
        for other in runs:
            if other.state != rs.RUN_STATE_PAUSED:
                request = gw.CancelRunRequest(
                    run_id=other.run_id, pause=True, cause="another run was started here"
                )
                await rpc.call(gateway.CancelRun, request, 30.0)
                on = proposed(f"train --run {other.run_id}", self._state)
                err.print(
                    f"{other.run_id} was interrupted; it is paused; go on with it: {on}",
                    markup=False,
                    soft_wrap=True,
                )
        create = gw.CreateRunRequest(
            recipe_json=self._recipe.model_dump_json(), request_id=uuid.uuid4().hex
        )
        with Waiting("reading the rows", patient=True):
            created = await rpc.call(gateway.CreateRun, create, 120.0)
        rows = row_counts.split(created.train_rows, created.held_out_rows)
        split = created.run.split_digest.hex()[:16]
        out.print(f"run {created.run.run_id}: {rows}, split {split}", markup=False, soft_wrap=True)
        if warning := row_counts.without_held_out(self._recipe.task, created.held_out_rows):
            err.print(warning, markup=False, soft_wrap=True)
        await self._announce_joining(gateway, created.run.run_id)
        run: rs.Run = created.run
        return run

    async def _resume(
        self, gateway: "gw_grpc.GatewayServiceAsyncStub", runs: list[rs.Run]
    ) -> rs.Run:
        run = resume.chosen(runs, self._wanted, self._state)
        self._recipe = Recipe.model_validate_json(run.recipe_json, strict=False)
        if run.state in (rs.RUN_STATE_PAUSED, rs.RUN_STATE_FAILED):
            run = (
                await rpc.call(
                    gateway.ResumeRun, gw.ResumeRunRequest(run_id=run.run_id, failed=True), 30.0
                )
            ).run
        out.print(f"run {run.run_id}: goes on at step {run.step}", markup=False, soft_wrap=True)
        others = resume.others(runs, run, self._state)
        if others:
            err.print(others, markup=False, soft_wrap=True)
        await self._announce_joining(gateway, run.run_id)
        return run

    async def _announce_joining(
        self, gateway: "gw_grpc.GatewayServiceAsyncStub", run_id: str
    ) -> None:
        if not self._listen:
            return
        token = await rpc.call(
            gateway.CreateToken, gw.CreateTokenRequest(run_id=run_id, valid_s=86_400), 30.0
        )
        out.print(
            joining(self._state, run_id, token.address, token.token), markup=False, soft_wrap=True
        )

    async def _follow(self, gateway: "gw_grpc.GatewayServiceAsyncStub", run: rs.Run) -> int:
        assert self._recipe is not None and self._supervisor is not None
        watching = asyncio.create_task(self._watch(gateway, run.run_id))
        interrupted = asyncio.create_task(self._interrupted.wait())
        waits: list[asyncio.Future[Any]] = [watching, interrupted, self._supervisor.failure]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if self._supervisor.failure.done() and not watching.done():
            watching.cancel()
            raise self._supervisor.failure.result()
        if not watching.done():
            watching.cancel()
            await asyncio.wait([watching])  # remove the live view before anything is printed
            return await self._pause(gateway, run.run_id)
        return await self._finish(gateway, watching.result())

    async def _watch(self, gateway: "gw_grpc.GatewayServiceAsyncStub", run_id: str) -> rs.Run:
        """Follow the run to its end, with a view that a clock moves."""
        assert self._recipe is not None
        past = await asyncio.to_thread(self._past, run_id) if self._resumed else None
        processes = functools.partial(self._processes, run_id)
        with LiveView(self._recipe, past, processes=processes) as view:
            clock = asyncio.create_task(_move(view))
            try:
                return await self._show_news(gateway, run_id, view)
            finally:
                await cancelled([clock])

    async def _show_news(
        self, gateway: "gw_grpc.GatewayServiceAsyncStub", run_id: str, view: LiveView
    ) -> rs.Run:
        """Show a run's news until it is over or paused; reconnect to a restarted gateway."""
        while True:
            try:
                async for news in gateway.WatchRun(
                    gw.WatchRunRequest(run_id=run_id), wait_for_ready=True
                ):
                    view.update(news)
                    if news.run.state in (*plain_data.OVER, rs.RUN_STATE_PAUSED):
                        run: rs.Run = news.run
                        return run
            except grpc.RpcError as error:
                failure = error_of(error, "gateway")
                # A store that cannot answer for a while ends no run.
                temporary = isinstance(failure, TemporaryError)
                if not temporary and failure.reason != Reason.INTERNAL:
                    raise failure from None
            await asyncio.sleep(0.2)

    def _past(self, run_id: str) -> Past:
        """Return the times of a run before this session; none if the store does not answer."""
        assert self._supervisor is not None
        state = self._supervisor.fleet.state
        try:
            with Client(state.address("treestore"), secret=state.secret) as client:
                return Past(client.policies(run_id), client.lived(run_id))
        except TemporaryError:
            return Past()

    def _processes(self, run_id: str) -> str:
        """Return those of a run's processes that do not serve yet, as `banyan ps` names them."""
        assert self._supervisor is not None
        children = [c for c in self._supervisor.children.values() if c.run_id == run_id]
        return ", ".join(f"{c.service} {c.state}" for c in children if c.state in _NOT_READY)

    async def _pause(self, gateway: "gw_grpc.GatewayServiceAsyncStub", run_id: str) -> int:
        err.print("stopping: the learner writes a checkpoint; once more to stop at once")
        request = gw.CancelRunRequest(run_id=run_id, pause=True, cause="interrupted")
        try:
            with Waiting("the gateway pauses the run", patient=True):
                await rpc.call(gateway.CancelRun, request, 30.0, 5.0)
        except Refused:
            run = (await rpc.call(gateway.GetRun, gw.GetRunRequest(run_id=run_id), 30.0, 5.0)).run
            if run.state in plain_data.OVER:  # it ended at the same moment
                return await self._finish(gateway, run)
        except BanyanError as error:
            err.print(
                f"the gateway does not answer ({error}); the run is stopped as it is", markup=False
            )
        err.print(f"{run_id} is paused; its services end", markup=False, soft_wrap=True)
        self._farewell = f"go on with: {proposed('train --resume', self._state)}"
        return INTERRUPTED

    async def _finish(self, gateway: "gw_grpc.GatewayServiceAsyncStub", run: rs.Run) -> int:
        assert self._recipe is not None and self._supervisor is not None
        self.ended = run
        seconds, recipe = time.monotonic() - self._begun, self._recipe
        state = self._supervisor.fleet.state
        if run.state != rs.RUN_STATE_SUCCEEDED:  # otherwise the learner has already finished
            await endings.checkpoint(self._supervisor, run.run_id, self._interrupted)

        def report() -> None:
            with Client(state.address("treestore"), secret=state.secret) as client:
                print_report(client, run.run_id, recipe, seconds, self._state)

        leaving = [endings.leaving(gateway, run.run_id)] if self._listen else []
        await asyncio.gather(asyncio.to_thread(report), *leaving)
        if run.state != rs.RUN_STATE_SUCCEEDED:
            cause = f": {run.cause}" if run.cause else ""
            err.print(
                f"{run.run_id} {plain_data.run_state(run.state)}{cause}",
                soft_wrap=True,
                markup=False,
            )
        if run.state == rs.RUN_STATE_PAUSED:
            command = proposed(f"train --run {run.run_id}", self._state)
            err.print(f"go on with it: {command}", soft_wrap=True, markup=False)
        return 0 if run.state == rs.RUN_STATE_SUCCEEDED else 1


async def _move(view: LiveView) -> None:
    """Move a view's clock until cancelled."""
    while True:
        await asyncio.sleep(view.pause())
        view.tick()
