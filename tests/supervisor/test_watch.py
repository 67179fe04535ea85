"""Processes that hang or never serve are restarted; slow ones are left alone."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from banyan.runtime.ports import free_port
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc.health import LIVENESS
from services.gateway.join import nats_accounts
from services.supervisor import supervisor as supervisor_module
from services.supervisor.backoff import Backoff
from services.supervisor.child import Child
from services.supervisor.fleet import ProcessCommands
from services.supervisor.probes import Answer, GrpcProbe, NatsProbe, probe_of
from services.supervisor.state import StateFolder
from services.supervisor.supervisor import Supervisor
from services.supervisor.watch import Patience
from tests.supervisor.supervised import (
    FakeRunStore,
    alive,
    change_workers,
    pids,
    supervised,
    workers,
)

QUICK = Patience(
    every_s=0.1, misses=3, answer_s=20.0, start_s={"learner": 20.0}, start_others_s=20.0
)
SERVED, STARTING = Answer(True, True), Answer(False, True)
SERVICE = """
import asyncio, os, signal, sys
from services.chassis.rpc import rpc
from services.chassis.rpc.health import Liveness, Pulse
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, os._exit, 0)
    liveness, pulse = Liveness(), Pulse("torch")
    liveness.add(pulse)
    server = await rpc.serve(sys.argv[1], [], [], liveness=liveness)
    {then}
    await asyncio.Event().wait()
asyncio.run(main())
"""


def _speaks(supervisor: Supervisor, then: str = "pass") -> None:
    """Let workers serve gRPC health and run `then`."""

    def serve_health(child: Child) -> None:
        child.health = f"127.0.0.1:{free_port()}"
        child.command = [sys.executable, "-c", SERVICE.format(then=then), child.health]

    change_workers(supervisor, serve_health)


@contextlib.asynccontextmanager
async def hanging(tmp_path: Path, then: str) -> AsyncIterator[tuple[Supervisor, FakeRunStore]]:
    store = FakeRunStore()
    async with supervised(tmp_path, store, {}) as supervisor:
        supervisor._patience = QUICK
        _speaks(supervisor, then)
        store.want(("learner", 1))
        yield supervisor, store


def _ready(store: FakeRunStore) -> Callable[[], bool]:
    return lambda: rs.PROCESS_EVENT_READY in store.events()


async def test_a_stopped_process_is_killed_and_started_again(
    tmp_path: Path, eventually: Any
) -> None:
    async with hanging(tmp_path, "pass") as (supervisor, store):
        await eventually(_ready(store), 20.0)
        (first,) = pids(supervisor, "learner")
        os.kill(first, signal.SIGSTOP)
        await eventually(lambda: store.events().count(rs.PROCESS_EVENT_READY) == 2, 20.0)
        assert not alive(first) and pids(supervisor, "learner") != [first]
        exited = next(r for r in store.reports if r.event == rs.PROCESS_EVENT_EXITED)
        assert exited.exit_status == -signal.SIGKILL
        assert (
            "it hung and was ended: 3 probes in a row, one every 0.1 s, had no answer"
            in exited.detail
        )


async def test_a_process_whose_thread_hangs_is_started_again_though_it_answers(
    tmp_path: Path, eventually: Any
) -> None:
    async with hanging(tmp_path, "pulse.beat('a step', 0.2)") as (_, store):
        await eventually(lambda: store.events().count(rs.PROCESS_EVENT_READY) == 2, 20.0)
        exited = next(r for r in store.reports if r.event == rs.PROCESS_EVENT_EXITED)
        assert "torch: a step is" in exited.detail and "NOT_SERVING" in exited.detail


async def test_a_process_that_says_that_it_takes_long_is_left_alone(
    tmp_path: Path, eventually: Any
) -> None:
    then = (
        "await server.set_serving(False); pulse.beat('loading', 60); await asyncio.sleep(1);"
        " await server.set_serving(True)"
    )
    async with hanging(tmp_path, then) as (_, store):
        await eventually(_ready(store), 20.0)
        assert rs.PROCESS_EVENT_EXITED not in store.events()


async def test_a_stopped_process_does_not_hold_up_the_end(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", SERVICE.format(then="pass"), address]
    child = Child("c", "c", command, {}, tmp_path / "log", health=address)
    await child.start()
    async with contextlib.aclosing(probe_of(child)) as probe:
        while await probe.ask(1.0) is None:
            assert child.running
    os.kill(child.pid, signal.SIGSTOP)
    async with asyncio.timeout(10):
        await child.stop(0.3)
    assert child.process is not None and child.process.returncode == -signal.SIGKILL


async def test_the_broker_is_asked_in_its_own_protocol(nats_server: Any, eventually: Any) -> None:
    probe = NatsProbe(nats_server.url, "")

    async def silent() -> bool:
        return await probe.ask(0.3) is None

    try:
        assert await probe.ask(5.0) == SERVED
        os.kill(nats_server.process.pid, signal.SIGSTOP)
        await eventually(silent)  # the signal takes a moment to reach all of its threads
        os.kill(nats_server.process.pid, signal.SIGCONT)
        assert await probe.ask(5.0) == SERVED
    finally:
        os.kill(nats_server.process.pid, signal.SIGCONT)
        await probe.aclose()


async def test_a_server_that_says_nothing_of_its_loops_lives_if_it_answers() -> None:
    """A foreign service has gRPC's health service without the liveness name."""
    server, servicer = grpc.aio.server(), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    probe = GrpcProbe(address)
    try:
        assert await probe.ask(10.0) == SERVED
        await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert await probe.ask(10.0) == STARTING
        await servicer.set(LIVENESS, health_pb2.HealthCheckResponse.NOT_SERVING)
        assert await probe.ask(10.0) == Answer(False, False)
    finally:
        await probe.aclose()
        await server.stop(0)


def _broker(tmp_path: Path) -> tuple[Supervisor, Child, int]:
    """Return a supervisor with a broker to keep, the broker, and its port."""
    state = StateFolder.open(tmp_path / "s")
    state.choose_ports()
    fleet = ProcessCommands(state)
    listen = f"127.0.0.1:{state.ports['nats']}"
    broker = fleet.nats(
        nats_accounts.write_nats_config(state.path, listen, state.path / "nats" / "jetstream", None)
    )

    async def nats() -> Child:
        return broker

    return Supervisor(fleet, nats, Backoff(), QUICK), broker, state.ports["nats"]


async def test_a_stopped_broker_is_killed_and_started_again(
    tmp_path: Path, eventually: Any
) -> None:
    supervisor, broker, _ = _broker(tmp_path)
    await supervisor.keep(broker)
    try:
        await supervisor.await_ready("nats", 20.0)
        first = broker.pid
        os.kill(first, signal.SIGSTOP)
        await eventually(lambda: broker.pid != first and broker.state == "ready", 20.0)
        assert not alive(first)
    finally:
        await supervisor.stop()


async def test_a_broker_whose_port_is_taken_for_a_while_is_tried_again(
    tmp_path: Path, eventually: Any
) -> None:
    supervisor, broker, port = _broker(tmp_path)
    try:
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))
            other.listen()
            await supervisor.keep(broker)
            await eventually(lambda: len(broker.exits) == 3, 20.0)
            assert broker.state != "ready" and not supervisor.failure.done()
        await supervisor.await_ready("nats", 20.0)
    finally:
        await supervisor.stop()


async def test_a_process_whose_port_somebody_took_gets_another(
    tmp_path: Path, eventually: Any
) -> None:
    store = FakeRunStore()
    async with supervised(tmp_path, store, {}) as supervisor:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = f"127.0.0.1:{other.getsockname()[1]}"
            code = SERVICE.format(then="pass").replace("sys.argv[1]", "os.environ['BANYAN_LISTEN']")

            def listen_there(child: Child) -> None:
                child.health, child.command = taken, [sys.executable, "-c", code]

            change_workers(supervisor, listen_there)
            store.want(("learner", 1))
            await eventually(_ready(store), 20.0)
        (learner,) = workers(supervisor, "learner")
        assert learner.health != taken


async def test_a_port_that_is_chosen_anew_is_none_of_its_own_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one of those that do not listen yet."""
    async with supervised(tmp_path, FakeRunStore(), {}) as supervisor:
        state = supervisor.fleet.state
        moved, other = (
            Child(f"x{port}", "learner", [], {}, tmp_path / "log", health=f"127.0.0.1:{port}")
            for port in (5, 6)
        )
        supervisor.children |= {"moved": moved, "other": other}
        taken_ports: list[set[int]] = []

        def free_port(taken: set[int]) -> int:
            taken_ports.append(taken)
            return 7

        monkeypatch.setattr(supervisor_module, "free_port", free_port)
        supervisor._change_port(moved)
        assert taken_ports == [{*state.ports.values(), 5, 6}]
        assert moved.health == moved.env["BANYAN_LISTEN"] == "127.0.0.1:7"
        del supervisor.children["moved"], supervisor.children["other"]


def test_all_that_can_be_asked_is_asked(tmp_path: Path) -> None:
    state = StateFolder.open(tmp_path / "s")
    state.choose_ports()
    fleet = ProcessCommands(state)
    children = [
        fleet.nats(tmp_path / "c"),
        fleet.base("gateway"),
        fleet.worker("r", "learner", 0, threads=1, port=5),
    ]
    assert all(child.health for child in children)
