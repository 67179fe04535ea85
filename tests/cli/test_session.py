"""`banyan train` at awkward moments: Ctrl-C before and after a run, a store that is away."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from banyan.cli.train import session as module
from banyan.cli.train.session import Session
from banyan.errors import DeadlineMissed, Refused
from banyan.recipe import Recipe
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1.gateway_service_pb2_grpc import (
    GatewayServiceServicer,
    GatewayServiceStub,
    add_GatewayServiceServicer_to_server,
)
from services.chassis.rpc import rpc
from tests.cli.folders import whole_model

ROOT = Path(__file__).parents[2]
DONE = rs.Run(run_id="r", state=rs.RUN_STATE_SUCCEEDED)


class Gateway(GatewayServiceServicer):
    """Gateway that fails first, then reports that the run is over."""

    def __init__(self) -> None:
        self.asked = 0

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[gw.WatchRunResponse]:
        self.asked += 1
        if self.asked == 1:
            raise DeadlineMissed("ReadRun: no answer in time")
        yield gw.WatchRunResponse(run=DONE)

    async def CancelRun(self, request: Any, context: Any) -> gw.CancelRunResponse:
        raise Refused("run r is SUCCEEDED and cannot become PAUSED", "WRONG_STATE")

    async def GetRun(self, request: Any, context: Any) -> gw.GetRunResponse:
        return gw.GetRunResponse(run=DONE)


@contextlib.asynccontextmanager
async def stub(gateway: Gateway) -> AsyncIterator[Any]:
    server = await rpc.serve(
        "127.0.0.1:0", [lambda s: add_GatewayServiceServicer_to_server(gateway, s)], []
    )
    async with rpc.channel(server.address) as channel:
        yield GatewayServiceStub(channel)
    await server.stop(0)


def session(tmp_path: Path) -> Session:
    recipe = Recipe.model_validate({"name": "x", "model": "m", "task": {"name": "arithmetic"}})
    return Session(tmp_path, recipe, "", [])


async def test_a_store_that_does_not_answer_for_a_while_ends_no_session(tmp_path: Path) -> None:
    created, gateway = session(tmp_path), Gateway()
    created._supervisor = object()  # type: ignore[assignment]
    async with stub(gateway) as asked, asyncio.timeout(20):
        assert (await created._watch(asked, "r")).state == rs.RUN_STATE_SUCCEEDED
    assert gateway.asked == 2


async def test_the_view_moves_by_a_clock_while_the_gateway_has_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, enough = [], asyncio.Event()

    class Silent(Gateway):
        async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[gw.WatchRunResponse]:
            await enough.wait()
            yield gw.WatchRunResponse(run=DONE)

    def tick(view: Any) -> None:
        ticks.append(view)
        if len(ticks) == 3:
            enough.set()

    monkeypatch.setattr(module.LiveView, "pause", lambda view: 0.01)
    monkeypatch.setattr(module.LiveView, "tick", tick)
    created = session(tmp_path)
    created._supervisor = object()  # type: ignore[assignment]
    async with stub(Silent()) as asked, asyncio.timeout(20):
        assert (await created._watch(asked, "r")).state == rs.RUN_STATE_SUCCEEDED
    assert len(ticks) >= 3


async def test_ctrl_c_as_the_run_ends_gives_its_report_and_no_advice_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    created, finished = session(tmp_path), []

    async def finish(gateway: Any, run: rs.Run) -> int:
        finished.append(run.state)
        return 0

    monkeypatch.setattr(created, "_finish", finish)
    async with stub(Gateway()) as asked:
        assert await created._pause(asked, "r") == 0
    assert finished == [rs.RUN_STATE_SUCCEEDED] and "--resume" not in capsys.readouterr().err


async def test_ctrl_c_is_heard_while_services_that_hang_are_asked_for_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = session(tmp_path)

    async def hangs(gateway: Any) -> rs.Run:
        await asyncio.sleep(60)
        return DONE

    monkeypatch.setattr(created, "_open", hangs)
    asyncio.get_running_loop().call_later(0.05, created._on_signal)
    async with asyncio.timeout(2.0):
        assert await created._begin(None) is None  # type: ignore[arg-type]


@contextlib.contextmanager
def begin(tmp_path: Path, *before: str) -> "Iterator[subprocess.Popen[str]]":
    """Start `banyan train` and stop in the middle of its start: nothing serves yet.

    A process that a test does not end, ends with it. It runs as from a terminal, also if the tests
    themselves were started with nohup.
    """
    recipe = {
        "name": "x",
        "model": whole_model(tmp_path),
        "task": {"name": "arithmetic"},
        "resources": {"engine": "scripted"},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    command = [
        *before,
        sys.executable,
        "-m",
        "banyan.cli",
        "train",
        str(tmp_path / "r.yaml"),
        "--state",
        str(tmp_path / "s"),
    ]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "s" / "logs" / "nats.log").exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        yield process
    finally:
        process.kill()  # its children end with it
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_before_the_run_is_begun_stops_at_once_and_begins_none(
    tmp_path: Path, number: signal.Signals
) -> None:
    with begin(tmp_path) as process:
        process.send_signal(number)
        begun = time.monotonic()
        output, _ = process.communicate(timeout=30)
        assert time.monotonic() - begun < 4.0  # two seconds, on cores that others use
    assert process.returncode == module.INTERRUPTED, output
    assert (
        "stopped before a run was begun" in output
        and f"starting the services, whose logs are in {tmp_path / 's' / 'logs'}" in output
        and "Traceback" not in output
        and "run x-" not in output
    )
    listed = tmp_path / "s" / "processes.json"
    rows = yaml.safe_load(listed.read_text()) if listed.exists() else []
    assert not [row for row in rows if row["pid"] and _alive(row["pid"])]


def test_a_closed_terminal_does_not_interrupt_what_was_started_with_nohup(tmp_path: Path) -> None:
    with begin(tmp_path, "nohup") as process:
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("run x-"):
            assert line, "it ended"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == module.INTERRUPTED


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
