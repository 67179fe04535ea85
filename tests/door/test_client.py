"""`Client` and its asynchronous twin: connecting, repetitions, deadlines."""

import asyncio
import fcntl
import inspect
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import banyan
from banyan.client import calls
from banyan.errors import DeadlineMissed, InvalidInput, Refused, TemporaryError
from banyan.runtime import secret as secret_module
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from tests.door.stub import Stub, Wire, failing, served

RECIPE = '{"name": "r"}'


def flaky(times: int, seen: list[Any], answer: Any) -> Callable[[Any, grpc.ServicerContext], Any]:
    """Return a method that is away some times before it answers."""

    def method(request: Any, context: grpc.ServicerContext) -> Any:
        seen.append((request, dict(context.invocation_metadata()), context.time_remaining()))
        if len(seen) <= times:
            failing(TemporaryError("away"), context)
        return answer

    return method


def test_a_creating_call_is_repeated_with_one_request_id() -> None:
    seen: list[Any] = []
    created = gw.CreateRunResponse(run=rs.Run(run_id="r-1"), train_rows=3)
    with (
        served(Stub(CreateRun=flaky(3, seen, created))) as address,
        banyan.Client.connect(address, gateway=address, secret="s3cret") as client,
    ):
        assert client.create(RECIPE).run.run_id == "r-1"
        assert client.create(RECIPE, request_id="mine").run.run_id == "r-1"
    ids = [request.request_id for request, _, _ in seen]
    assert len(set(ids[:4])) == 1 and len(ids[0]) == 32 and ids[4:] == ["mine"]
    assert all(metadata[secret_module.KEY] == "s3cret" for _, metadata, _ in seen)
    assert all(remaining is not None and remaining <= 31 for _, _, remaining in seen)


async def test_the_twin_repeats_with_one_request_id_too() -> None:
    seen: list[Any] = []
    created = gw.CreateRunResponse(run=rs.Run(run_id="r-1"))
    with served(Stub(CreateRun=flaky(2, seen, created))) as address:
        found = banyan.AsyncClient.connect(address, gateway=address, secret="s3cret")
        async with found as client:
            assert (await client.create(RECIPE)).run.run_id == "r-1"
    assert len({request.request_id for request, _, _ in seen}) == 1 and len(seen) == 3
    assert all(metadata[secret_module.KEY] == "s3cret" for _, metadata, _ in seen)
    assert all(remaining is not None and remaining <= 31 for _, _, remaining in seen)


def test_a_call_that_is_not_safe_is_sent_once() -> None:
    seen: list[Any] = []
    with (
        served(Stub(CancelRun=flaky(1, seen, gw.CancelRunResponse()))) as address,
        banyan.Client(address, address) as client,
        pytest.raises(TemporaryError, match="away"),
    ):
        client.cancel("r-1", "mine")
    assert len(seen) == 1


def test_what_is_refused_is_not_repeated() -> None:
    asked: list[Any] = []

    def read(request: Any, context: grpc.ServicerContext) -> Any:
        asked.append(request)
        failing(Refused("no", "HELD_OUT"), context)

    with (
        served(Stub(ReadRuns=read)) as address,
        banyan.Client(address) as client,
        pytest.raises(Refused, match="no") as caught,
    ):
        client.runs()
    assert caught.value.reason == "HELD_OUT" and len(asked) == 1


def test_repetitions_end_with_the_deadline() -> None:
    seen: list[Any] = []
    with (
        served(Stub(ReadRuns=flaky(1000, seen, None))) as address,
        banyan.Client(address, deadline_s=1.0) as client,
    ):
        begun = time.monotonic()
        with pytest.raises(TemporaryError, match="away"):
            client.runs()
    assert time.monotonic() - begun < 3 and len(seen) > 2


async def test_nobody_there_is_a_missed_deadline() -> None:
    with banyan.Client("127.0.0.1:9", deadline_s=0.3) as client, pytest.raises(DeadlineMissed):
        client.runs()
    async with banyan.AsyncClient("127.0.0.1:9", deadline_s=0.3) as twin:
        with pytest.raises(DeadlineMissed):
            await twin.runs()


def test_commands_without_a_gateway_say_what_is_missing() -> None:
    with banyan.Client("127.0.0.1:9") as client, pytest.raises(InvalidInput, match="gateway=HOST"):
        client.cancel("r", "mine")


def test_a_running_folder_gives_ports_and_secret(tmp_path: Path) -> None:
    seen: list[Any] = []
    runs = rs.ReadRunsResponse(runs=[rs.Run(run_id="r-1")])
    with served(Stub(ReadRuns=flaky(0, seen, runs))) as address:
        port = int(address.rpartition(":")[2])
        (tmp_path / "store.sqlite").touch()
        (tmp_path / "ports.json").write_text(json.dumps({"treestore": port, "gateway": port}))
        known = secret_module.make(tmp_path / secret_module.FILE)
        with open(tmp_path / "lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with banyan.Client.connect(tmp_path) as client:
                assert client.runs()[0].run_id == "r-1"
            with banyan.open(tmp_path) as store:  # no second store is started
                assert store.runs()[0].run_id == "r-1"
    assert [metadata[secret_module.KEY] for _, metadata, _ in seen] == [known, known]


def test_an_address_takes_its_secret_from_the_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    known = secret_module.make(tmp_path / "known")
    monkeypatch.setenv("BANYAN_SECRET_FILE", str(tmp_path / "known"))
    with (
        served(Stub(ReadRuns=flaky(0, seen, rs.ReadRunsResponse()))) as address,
        banyan.open(address) as store,
    ):
        assert store.runs() == ()
    assert [metadata[secret_module.KEY] for _, metadata, _ in seen] == [known]


def test_the_twin_has_the_same_calls() -> None:
    def calls(cls: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(cls, callable)
            if not name.startswith("_")
        }

    assert calls(banyan.Client) == calls(banyan.AsyncClient)
    for name in calls(banyan.AsyncClient).keys() - {"connect"}:
        member = getattr(banyan.AsyncClient, name)
        assert inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member), name


@pytest.mark.slow
@pytest.mark.parametrize("twin", [False, True])
async def test_watching_a_host_that_vanished_ends_in_an_error(
    monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:
    """Its deadline is a week."""
    assert dict(calls.OPTIONS)["grpc.keepalive_time_ms"] <= 60_000
    shorter = {  # 10 s are the least; without the probes of its window by which gRPC pings, too
        "grpc.keepalive_time_ms": 10_000,
        "grpc.http2.ping_timeout_ms": 1_000,
        "grpc.http2.bdp_probe": 0,
    }
    monkeypatch.setattr(calls, "OPTIONS", list((dict(calls.OPTIONS) | shorter).items()))
    over = threading.Event()

    def watched(request: gw.WatchRunRequest, context: Any) -> Iterator[gw.WatchRunResponse]:
        yield gw.WatchRunResponse(run=rs.Run(run_id="r"))
        over.wait(60)

    def watching(address: str) -> None:
        with banyan.Client(address, address) as client, pytest.raises(TemporaryError):
            for _ in client.watch("r"):
                wire.cut.set()

    async with asyncio.timeout(40):
        with served(Stub(WatchRun=watched)) as address:
            wire = Wire(address)
            if twin:
                async with banyan.AsyncClient(wire.address, wire.address) as client:
                    with pytest.raises(TemporaryError):
                        async for _ in client.watch("r"):
                            wire.cut.set()
            else:
                await asyncio.to_thread(watching, wire.address)
            over.set()
            wire.close()


def test_a_hundred_thousand_trees_need_the_memory_of_a_page() -> None:
    total, most = 100_000, 0

    def listed(request: ts.ListTreesRequest, context: Any) -> ts.ListTreesResponse:
        first = (request.filter.before or total + 1) - 1
        numbers = range(first, max(0, first - request.filter.limit), -1)
        trees = [
            ts.TreeSummary(tree_id=number.to_bytes(32, "big"), number=number, run_id="r")
            for number in numbers
        ]
        return ts.ListTreesResponse(trees=trees)

    run = rs.ReadRunResponse(run=rs.Run(run_id="r", recipe_json="{}"))
    with (
        served(Stub(ListTrees=listed, ReadRun=lambda *_: run)) as address,
        banyan.open(address) as store,
    ):
        found = store.run("r").trees()
        assert next(found).tree_id == f"{total:064x}"
        tracemalloc.start()
        count = 1 + sum(1 for _ in found)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert count == total
    assert most < 8 << 20, f"{most:,} bytes"
