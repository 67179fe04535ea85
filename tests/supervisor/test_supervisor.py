"""The supervisor's loops against a store that a test plays: what is started, what is not, and that nothing dies silently."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import DeadlineMissed, NotFound, TemporaryError
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1.runstore_service_pb2_grpc import (
    RunStoreServiceServicer,
    add_RunStoreServiceServicer_to_server,
)
from services.chassis.process.nats_server import free_port
from services.chassis.rpc import rpc
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.fleet import ProcessCommands
from services.supervisor.state import StateFolder
from services.supervisor.supervisor import Supervisor

SLEEPS = "import time; time.sleep(60)"
RECIPE = '{"resources": {"rollout_nodes": 1, "threads": 1}, "control": {"max_staleness": 0}}'


class Store(RunStoreServiceServicer):
    """Wants what the test says, `service` or `service@run`; keeps the reports."""

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


class Processes(ProcessCommands):
    """Plain Python instead of services; `codes` by service."""

    codes: dict[str, str]

    def base(self, service: str) -> Child:
        return self._plain(service, service)

    def worker(
        self, run_id: str, service: str, replica: int, threads: int, port: int, ranks: int = 1
    ) -> Child:
        child = self._plain(f"{service}-{run_id}-{replica}", service)
        child.run_id, child.replica = run_id, replica
        return child

    def _plain(self, name: str, service: str) -> Child:
        command = [sys.executable, "-c", self.codes.get(service, SLEEPS)]
        return Child(name, service, command, {}, self.state.log(name))


@contextlib.asynccontextmanager
async def supervised(
    tmp_path: Path, store: Store, codes: dict[str, str], **backoff: Any
) -> AsyncIterator[Supervisor]:
    server = await rpc.serve(
        "127.0.0.1:0",
        [lambda s: add_RunStoreServiceServicer_to_server(store, s)],
        ["banyan.v1.RunStoreService"],
    )
    state = StateFolder.open(tmp_path / "s")
    state.ports["treestore"] = int(server.address.rsplit(":", 1)[1])
    fleet = Processes(state)
    object.__setattr__(fleet, "codes", codes)

    async def nats() -> Child:
        return Child("nats", "nats", [sys.executable, "-c", SLEEPS], {}, state.log("nats"))

    supervisor = Supervisor(fleet, nats, Backoff(first_s=0.05, **backoff))
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()
        await server.stop(0)


def pids(supervisor: Supervisor, service: str) -> list[int]:
    return [c.pid for c in supervisor.children.values() if c.service == service and c.running]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_what_is_wanted_is_started_and_what_is_not_is_stopped(
    tmp_path: Path, eventually: Any
) -> None:
    store = Store()
    async with supervised(tmp_path, store, {}) as supervisor:
        store.want(("rollout", 2), ("learner", 1))
        await eventually(
            lambda: len(pids(supervisor, "rollout")) == 2 and len(pids(supervisor, "learner")) == 1
        )
        store.want()
        await eventually(
            lambda: not pids(supervisor, "rollout") and not pids(supervisor, "learner")
        )


async def test_a_process_wanted_again_while_its_predecessor_waits_to_restart_is_one(
    tmp_path: Path, eventually: Any
) -> None:
    store, log = Store(), tmp_path / "starts"
    code = f"import os, time; open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    async with supervised(tmp_path, store, {"learner": code}, longest_s=1.0) as supervisor:
        supervisor._backoff = Backoff(first_s=1.0)
        store.want(("learner", 1))
        await eventually(lambda: log.exists() and log.read_text().count("\n") == 1)
        os.kill(pids(supervisor, "learner")[0], signal.SIGKILL)
        await eventually(lambda: rs.PROCESS_EVENT_EXITED in store.events())
        store.want()
        await eventually(lambda: supervisor._wanted == {"nats", "treestore", "verifier", "gateway"})
        store.want(("learner", 1))
        await eventually(lambda: log.read_text().count("\n") == 2)
        await asyncio.sleep(1.2)  # the time that the first one waited for
        started = [int(pid) for pid in log.read_text().split()]
        assert len(started) == 2 and [p for p in started if alive(p)] == pids(supervisor, "learner")


async def test_a_given_up_process_is_reported_until_the_store_hears_it(
    tmp_path: Path, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    async with supervised(tmp_path, store, {"learner": "raise SystemExit(2)"}) as supervisor:
        plain, asked = supervisor._report, []

        async def impatient(child: Child, event: int, patience_s: float = 0.0) -> bool:
            asked.append(event)
            if event == rs.PROCESS_EVENT_GIVEN_UP and asked.count(event) == 1:
                store.deaf = 1
            return await plain(child, event, 0.0)  # type: ignore[arg-type]

        monkeypatch.setattr(supervisor, "_report", impatient)
        store.want(("learner", 1))
        await eventually(lambda: rs.PROCESS_EVENT_GIVEN_UP in store.events())
        assert asked.count(rs.PROCESS_EVENT_GIVEN_UP) == 2


async def test_a_process_that_dies_slowly_for_ever_is_given_up_unless_the_run_gets_on(
    tmp_path: Path, eventually: Any
) -> None:
    store = Store()
    async with supervised(
        tmp_path, store, {"learner": "raise SystemExit(1)"}, longest_s=0.05, limit=4, window_s=0.0
    ):
        store.want(("learner", 1))

        def gets_on() -> bool:
            store.step += 1
            return len(store.reports) >= 16

        await eventually(gets_on)
        assert rs.PROCESS_EVENT_GIVEN_UP not in store.events()
        await eventually(lambda: rs.PROCESS_EVENT_GIVEN_UP in store.events())


async def test_a_process_that_cannot_be_started_is_tried_again_and_then_given_up(
    tmp_path: Path, eventually: Any
) -> None:
    store = Store()
    async with supervised(tmp_path, store, {}, limit=3) as supervisor:
        plain = supervisor.fleet.worker

        def broken(*arguments: Any) -> Child:
            child = plain(*arguments)
            child.command = ["/nowhere/python"]
            return child

        object.__setattr__(supervisor.fleet, "worker", broken)
        store.want(("learner", 1))
        await eventually(lambda: rs.PROCESS_EVENT_GIVEN_UP in store.events())
        assert store.reports[-1].exit_status == 126
        assert not supervisor.failure.done()


def test_a_learner_is_told_how_many_ranks_it_is_to_have(tmp_path: Path) -> None:
    """It starts them itself, and must know before it loads torch whether the cores are its own."""
    fleet = ProcessCommands(StateFolder(tmp_path, dict.fromkeys(("nats", "treestore"), 1)))
    learner, rollout = (
        fleet.worker("r", service, 0, 4, 1, 2) for service in ("learner", "rollout")
    )
    assert learner.env["BANYAN_THREADS_FILE"] == str(fleet.state.threads("learner-r-0"))
    assert learner.env["BANYAN_RANKS"] == "2" and "BANYAN_RANKS" not in rollout.env


async def test_a_loop_that_breaks_is_a_failure_and_no_silence(
    tmp_path: Path, eventually: Any
) -> None:
    store = Store()
    async with supervised(tmp_path, store, {}) as supervisor:
        store.unknown_run = True
        store.want(("learner", 1))
        await eventually(supervisor.failure.done)
        assert "start and stop learner-r-0 failed: NotFound: there is no run 'r'" in str(
            supervisor.failure.result()
        )


async def test_a_node_that_still_loads_its_model_does_not_hold_up_the_end(
    tmp_path: Path, eventually: Any
) -> None:
    """Torch hears no signal while it loads; the learner gets the time for its checkpoint only once it holds something."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    store = Store()
    async with supervised(tmp_path, store, {"learner": deaf, "rollout": deaf}) as supervisor:
        plain = supervisor.fleet.worker

        def unready(*arguments: Any) -> Child:
            child = plain(*arguments)
            child.health = "127.0.0.1:9"  # nobody answers there
            return child

        object.__setattr__(supervisor.fleet, "worker", unready)
        store.want(("learner", 1), ("rollout", 1))
        workers = lambda: [c for c in supervisor.children.values() if c.run_id]  # noqa: E731
        await eventually(lambda: len(workers()) == 2 and all("deaf" in c.tail() for c in workers()))
        begun = time.monotonic()
        store.want()
        await eventually(lambda: not any(c.running for c in workers()), 20.0)
        assert time.monotonic() - begun < 8.0


async def _starting(tmp_path: Path, code: str) -> tuple[Supervisor, "asyncio.Task[None]"]:
    """A supervisor whose treestore never serves."""
    state = StateFolder.open(tmp_path / "s")
    fleet = Processes(state)
    object.__setattr__(fleet, "codes", {"treestore": code})
    plain = fleet.base

    def deaf(service: str) -> Child:
        child = plain(service)
        child.health = f"127.0.0.1:{free_port()}" if service == "treestore" else ""
        return child

    object.__setattr__(fleet, "base", deaf)

    async def nats() -> Child:
        return Child("nats", "nats", [sys.executable, "-c", SLEEPS], {}, state.log("nats"))

    supervisor = Supervisor(fleet, nats, Backoff(first_s=0.05, limit=1000))
    return supervisor, asyncio.create_task(supervisor.start())


async def test_a_start_that_is_given_up_is_over_within_two_seconds(
    tmp_path: Path, eventually: Any
) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    supervisor, starting = await _starting(tmp_path, deaf)
    await eventually(
        lambda: (
            "treestore" in supervisor.children and "deaf" in supervisor.children["treestore"].tail()
        )
    )
    begun = time.monotonic()
    starting.cancel()
    await asyncio.wait([starting])
    await supervisor.stop()
    assert time.monotonic() - begun < 2.0
    assert not any(child.running for child in supervisor.children.values())


async def test_a_process_that_dies_again_and_again_as_it_starts_is_named_with_its_last_words(
    tmp_path: Path, eventually: Any
) -> None:
    supervisor, starting = await _starting(
        tmp_path, "print('first'); raise SystemExit('treestore: no such planet')"
    )
    await eventually(
        lambda: (
            "treestore" in supervisor.children and len(supervisor.children["treestore"].exits) > 1
        ),
        20.0,
    )
    with pytest.raises(
        DeadlineMissed,
        match=r"ended \d+ times; its last words: treestore: no such planet \(.*log\)",
    ):
        await supervisor.await_ready("treestore", 0.1)
    starting.cancel()
    await asyncio.wait([starting])
    await supervisor.stop()


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


async def test_a_slow_end_of_one_run_does_not_hold_up_the_start_of_another(
    tmp_path: Path, eventually: Any
) -> None:
    store = Store()
    async with supervised(tmp_path, store, {"learner": DEAF}) as supervisor:
        store.want(("learner@old", 1))
        await eventually(
            lambda: any(
                "deaf" in c.tail() for c in supervisor.children.values() if c.service == "learner"
            )
        )
        old = next(c for c in supervisor.children.values() if c.run_id == "old")
        store.want(("rollout@new", 1))  # the learner of the old one has a minute for its checkpoint
        await eventually(lambda: len(pids(supervisor, "rollout")) == 1, 5.0)
        assert old.running and old.name not in supervisor._wanted
        old.signal(signal.SIGKILL)


async def test_a_process_that_is_wanted_again_waits_for_its_own_end(
    tmp_path: Path, eventually: Any
) -> None:
    store = Store()
    async with supervised(tmp_path, store, {"learner": DEAF}) as supervisor:
        store.want(("learner", 1))
        await eventually(
            lambda: any(
                "deaf" in c.tail() for c in supervisor.children.values() if c.service == "learner"
            )
        )
        first = next(c for c in supervisor.children.values() if c.service == "learner")
        store.want(("rollout", 1))
        await eventually(lambda: first.name not in supervisor._wanted)
        store.want(("learner", 1), ("rollout", 2))
        await eventually(lambda: len(pids(supervisor, "rollout")) == 2)
        # two learners of a run would write the same checkpoints
        assert pids(supervisor, "learner") == [first.pid]
        first.signal(signal.SIGKILL)
        await eventually(lambda: pids(supervisor, "learner") not in ([], [first.pid]))


async def test_runs_divide_the_cores_unless_they_must_repeat_themselves(
    tmp_path: Path, eventually: Any
) -> None:
    store, asked = Store(), dict[str, int]()
    async with supervised(tmp_path, store, {}) as supervisor:
        plain = supervisor.fleet.worker

        def noted(run_id: str, service: str, replica: int, threads: int, *more: Any) -> Child:
            asked[run_id] = threads
            return plain(run_id, service, replica, threads, *more)

        object.__setattr__(supervisor.fleet, "worker", noted)
        store.recipe = RECIPE.replace('"threads": 1', '"threads": "auto"')
        cores = len(os.sched_getaffinity(0))
        store.want(("learner@a", 1))
        await eventually(lambda: "a" in asked)
        store.want(("learner@a", 1), ("learner@b", 1))
        await eventually(lambda: "b" in asked)
        store.recipe = store.recipe.replace("{", '{"deterministic": true, ', 1)
        store.want(("learner@a", 1), ("learner@b", 1), ("learner@c", 1))
        await eventually(lambda: "c" in asked)
    assert asked == {"a": cores, "b": max(1, cores // 2), "c": cores}


async def test_runs_that_run_already_divide_the_cores_anew_as_others_begin_and_end(
    tmp_path: Path, eventually: Any
) -> None:
    store, cores = Store(), len(os.sched_getaffinity(0))
    store.recipe = RECIPE.replace('"threads": 1', '"threads": "auto"')
    async with supervised(tmp_path, store, {}) as supervisor:

        def told() -> dict[str, int]:
            folder = supervisor.fleet.state.path / "threads"
            return {file.name: int(file.read_text()) for file in folder.glob("*-0")}

        store.want(("learner@a", 1))
        await eventually(lambda: told() == {"learner-a-0": cores})
        store.want(("learner@a", 1), ("learner@b", 1))
        await eventually(
            lambda: told() == dict.fromkeys(("learner-a-0", "learner-b-0"), max(1, cores // 2))
        )
        store.want(("learner@b", 1))
        await eventually(lambda: told() == {"learner-b-0": cores})
