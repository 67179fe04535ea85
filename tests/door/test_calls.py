"""Calls of both clients: which may be made twice, how long they wait, and what they send."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import banyan
from banyan.client import calls, connecting
from banyan.errors import DeadlineMissed, TemporaryError
from banyan.runtime import secret as secret_module
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from tests.door.stub import Stub, served
from tests.door.test_client import flaky

ONCE = {"CancelRun", "ResumeRun", "CreateToken", "PutRescores", "ReplayDead"}


def made() -> Iterator[calls.Call[Any]]:
    """Yield each call that changes something, and two that read."""
    rescorer = rs.Rescorer()
    yield calls.create("{}", "", "")
    yield calls.cancel("r", "mine", False)
    yield calls.resume("r", False)
    yield calls.remove("r", rs.KEPT_UNSPECIFIED, False)
    yield calls.create_token("r", 1.0)
    yield calls.put_rescores(rescorer, ())
    yield calls.replay_dead(1)
    yield calls.runs()
    yield calls.stats("r")


def test_only_what_may_be_done_twice_is_repeated_and_never_after_the_deadline() -> None:
    away = TemporaryError("away")
    assert {call.method for call in made() if not calls.repeated(call, away)} == ONCE
    assert not any(calls.repeated(call, DeadlineMissed("late")) for call in made())


def test_pauses_between_repetitions_grow_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    pauses: list[float] = []
    monkeypatch.setattr("banyan.client.connection.time.sleep", pauses.append)
    with (
        served(Stub(ReadRuns=flaky(7, seen, rs.ReadRunsResponse()))) as address,
        banyan.Client(address) as client,
    ):
        assert client.runs() == []
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


async def test_the_twin_pauses_as_long_and_ends_with_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    pauses: list[float] = []
    real = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr("banyan.client.async_connection.asyncio.sleep", pause)
    with served(Stub(ReadRuns=flaky(7, seen, rs.ReadRunsResponse()))) as address:
        async with banyan.AsyncClient(address) as twin:
            assert await twin.runs() == []
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    monkeypatch.undo()
    with served(Stub(ReadRuns=flaky(1000, seen, None))) as address:
        async with banyan.AsyncClient(address, deadline_s=1.0) as twin:
            seen.clear()
            begun = time.monotonic()
            with pytest.raises(TemporaryError, match="away") as ended:
                await twin.runs()
    assert not isinstance(ended.value, DeadlineMissed), "what was said last is told"
    assert time.monotonic() - begun < 3 and 2 < len(seen) < 8


def paged(request: rs.ReadAllocationsRequest, context: Any) -> rs.ReadAllocationsResponse:
    """Answer with two of five allocations at a time."""
    numbers = range(request.first, min(5, request.first + 2))
    return rs.ReadAllocationsResponse(allocations=[rs.GroupAllocation(ordinal=n) for n in numbers])


async def test_allocations_come_in_pages_and_none_is_left_out() -> None:
    with served(Stub(ReadAllocations=paged)) as address:
        with banyan.Client(address) as client:
            assert [a.ordinal for a in client.allocations("r")] == [0, 1, 2, 3, 4]
        async with banyan.AsyncClient(address) as twin:
            assert [a.ordinal for a in await twin.allocations("r", 1)] == [1, 2, 3, 4]


def streaming(seen: list[Any], answer: Any) -> Callable[[Any, grpc.ServicerContext], Any]:
    """Return a method that answers once and notes secret and deadline."""

    def method(request: Any, context: grpc.ServicerContext) -> Any:
        known = dict(context.invocation_metadata()).get(secret_module.KEY)
        seen.append((known, context.time_remaining()))
        yield answer

    return method


async def test_streams_carry_the_secret_and_have_deadlines_of_their_own() -> None:
    seen: list[Any] = []
    tree = tree_pb2.Tree(reason="mine")
    stub = Stub(
        StreamTrees=streaming(seen, ts.StreamTreesResponse(tree=tree)),
        WatchRun=streaming(seen, gw.WatchRunResponse()),
    )
    with served(stub) as address:
        with banyan.Client(address, address, secret="known") as client:
            assert [t.reason for t in client.whole_trees("r")] == ["mine"]
            assert len(list(client.watch("r"))) == 1
        async with banyan.AsyncClient(address, address, secret="known") as twin:
            assert [t.reason async for t in twin.whole_trees("r")] == ["mine"]
            assert len([news async for news in twin.watch("r")]) == 1
    assert [known for known, _ in seen] == ["known"] * 4
    for (_, trees), (_, watch) in (seen[:2], seen[2:]):
        assert calls.STREAM_S - 60 < trees <= calls.STREAM_S + 1
        assert calls.WATCH_S - 60 < watch < calls.WATCH_S + 3600  # gRPC sends whole hours


async def test_times_are_in_seconds() -> None:
    asked: list[int] = []

    def token(request: gw.CreateTokenRequest, context: Any) -> gw.CreateTokenResponse:
        asked.append(request.valid_s)
        return gw.CreateTokenResponse()

    lived = rs.ReadRunResponse(live_ms=1500)
    with served(Stub(CreateToken=token, ReadRun=lambda *_: lived)) as address:
        with banyan.Client(address, address) as client:
            client.create_token("r", 1.5)
            assert client.lived("r") == 1.5
        async with banyan.AsyncClient(address, address) as twin:
            await twin.create_token("r", 0.25)
            assert await twin.lived("r") == 1.5
    assert asked == [5400, 900]


def test_a_secret_that_is_named_goes_before_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = secret_module.make(tmp_path / "known")
    monkeypatch.setenv("BANYAN_SECRET_FILE", str(tmp_path / "known"))
    assert connecting.endpoints("127.0.0.1:9").secret == known
    assert connecting.endpoints("127.0.0.1:9", secret="mine").secret == "mine"
    assert "mine" not in repr(connecting.endpoints("127.0.0.1:9", secret="mine"))


def test_a_folder_whose_name_looks_like_an_address_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert connecting.is_address("run:7") and not connecting.is_address("a/run:7")
    os.mkdir("run:7")
    assert not connecting.is_address("run:7")


async def test_a_closed_client_sends_nothing_more() -> None:
    seen: list[Any] = []
    stub = Stub(
        CancelRun=flaky(0, seen, gw.CancelRunResponse()),
        ReadRuns=flaky(0, seen, rs.ReadRunsResponse()),
    )
    with served(stub) as address:
        twin = banyan.AsyncClient(address, address)
        async with twin:
            await twin.runs()
        for again in (twin.runs(), twin.cancel("r", "mine")):
            with pytest.raises(Exception, match="closed"):
                await again
        client = banyan.Client(address, address)
        client.close()
        for once_more in (client.runs, lambda: client.cancel("r", "mine")):
            with pytest.raises(ValueError, match="closed"):
                once_more()
    assert len(seen) == 1
