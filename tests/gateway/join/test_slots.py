"""Limits on a joined node's calls and on a connection's streams; other nodes keep theirs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from banyan.errors import TemporaryError
from banyan.v1 import learner_service_pb2 as learner
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1.learner_service_pb2_grpc import (
    LearnerServiceServicer,
    LearnerServiceStub,
    add_LearnerServiceServicer_to_server,
)
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.rpc import rpc
from services.gateway.join import client, slots
from tests.gateway.live_site import Site, node_channel


@pytest.fixture
def two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow two calls. Requested before the site, which reads the limit when it starts."""
    monkeypatch.setattr(slots, "CALLS", 2)


@pytest.fixture
def two_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "STREAMS", 2)


@dataclass
class Node:
    """A joined node with a claimed tree, which does not grow."""

    env: dict[str, str]
    channel: grpc.aio.Channel
    run_id: str
    tree_id: bytes

    def wait(self, deadline_ms: int = 60_000) -> Any:
        """Wait for the tree's growth, in vain."""
        request = lineage.AwaitIngestedRequest(
            tree_id=self.tree_id, epoch=1, grown=True, deadline_ms=deadline_ms
        )
        return TreeStoreServiceStub(self.channel).AwaitIngested(request, timeout=30)

    def claimed(self) -> Any:
        return TreeStoreServiceStub(self.channel).StreamClaimed(
            lineage.StreamClaimedRequest(tree_id=self.tree_id, epoch=1), timeout=30
        )

    def fetch(self) -> Any:
        return LearnerServiceStub(self.channel).FetchWeights(
            learner.FetchWeightsRequest(digest=b"\1" * 32), timeout=30
        )


async def read_run(
    opened: grpc.aio.Channel, run_id: str, deadline_s: float = 10.0
) -> runs.ReadRunResponse:
    method = RunStoreServiceStub(opened).ReadRun
    answer: runs.ReadRunResponse = await rpc.call(
        method, runs.ReadRunRequest(run_id=run_id), deadline_s
    )
    return answer


@contextlib.asynccontextmanager
async def joined(
    here: Site, folder: Path, eventually: Any, address: str = ""
) -> AsyncIterator[Node]:
    """Join as node n-1, at a site whose weights come from `address`."""
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), folder, "n-1"
    )
    await here.publish_policy(here.run_id, 0, address=address)
    ask = lineage.ListTreesRequest(filter=lineage.TreeFilter(run_id=here.run_id))

    async def opened() -> bool:
        return bool((await rpc.call(here.trees.ListTrees, ask)).trees)

    await eventually(opened)
    tree_id = (await rpc.call(here.trees.ListTrees, ask)).trees[0].tree_id
    async with node_channel(env) as channel:
        claim = lineage.ClaimTreeRequest(tree_id=tree_id, node_id="n-1", ticket=1)
        assert (await rpc.call(TreeStoreServiceStub(channel).ClaimTree, claim)).epoch == 1
        yield Node(env, channel, here.run_id, tree_id)


async def _refused(call: Any) -> None:
    """Check that a call is refused for want of a slot; a stream at its first message."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await (anext(aiter(call)) if isinstance(call, grpc.aio.UnaryStreamCall) else call)
    _too_many(failed.value)


def _too_many(error: BaseException | None) -> None:
    assert isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE
    meant = rpc.error_of(error, "call")
    assert isinstance(meant, TemporaryError) and meant.reason == "TOO_MANY"
    assert "node n-1 has 2 calls under way" in str(meant)


async def _whole(call: Any) -> Any:
    return await call


@pytest.mark.usefixtures("two_calls")
async def test_the_third_call_that_waits_is_refused_until_one_ends(
    here: Site, tmp_path: Path, eventually: Any
) -> None:
    other = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "other", "n-2"
    )
    async with joined(here, tmp_path / "node", eventually) as mine, node_channel(other) as others:
        waits = [asyncio.ensure_future(_whole(mine.wait())) for _ in range(3)]
        ended, waiting = await asyncio.wait(waits, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert (len(ended), len(waiting)) == (1, 2)
        _too_many(ended.pop().exception())
        await _refused(mine.wait())
        assert (await read_run(others, here.run_id)).run.run_id == here.run_id
        waiting.pop().cancel()

        async def free() -> bool:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return not (await mine.wait(deadline_ms=1)).grown
            return False

        await eventually(free)
        waiting.pop().cancel()


class _Slow(LearnerServiceServicer):
    """A learner that sends half of the weights, and the rest when the test lets it."""

    def __init__(self) -> None:
        self.more = asyncio.Event()

    async def FetchWeights(
        self, request: learner.FetchWeightsRequest, context: Any
    ) -> AsyncIterator[Any]:
        yield learner.FetchWeightsResponse(data=b"1", total=2)
        await self.more.wait()
        yield learner.FetchWeightsResponse(offset=1, data=b"2", total=2)


@contextlib.asynccontextmanager
async def _slow_learner() -> AsyncIterator[tuple[_Slow, str]]:
    slow = _Slow()
    server = await rpc.serve(
        "127.0.0.1:0", [lambda s: add_LearnerServiceServicer_to_server(slow, s)], []
    )
    yield slow, server.address
    await server.stop(0)


@pytest.mark.usefixtures("two_calls")
async def test_a_stream_to_a_node_has_a_slot_until_its_end(
    here: Site, tmp_path: Path, eventually: Any
) -> None:
    async with (
        _slow_learner() as (slow, address),
        joined(here, tmp_path / "node", eventually, address) as mine,
    ):
        # The tree has no segments yet, and the call is not refused.
        assert [part async for part in mine.claimed()] == []
        fetches = [aiter(mine.fetch()), aiter(mine.fetch())]
        assert [(await anext(fetch)).data for fetch in fetches] == [b"1", b"1"]
        for call in (mine.fetch(), mine.claimed(), mine.wait()):
            await _refused(call)
        slow.more.set()
        assert [[piece.data async for piece in fetch] for fetch in fetches] == [[b"2"], [b"2"]]
        assert [part async for part in mine.claimed()] == []
        assert not (await mine.wait(deadline_ms=1)).grown


@pytest.mark.usefixtures("two_streams")
async def test_a_connection_has_so_many_calls_and_the_rest_waits_at_the_caller(
    here: Site, tmp_path: Path, eventually: Any
) -> None:
    async with (
        joined(here, tmp_path / "node", eventually) as mine,
        node_channel(mine.env) as second,
    ):
        waits = [mine.wait(), mine.wait()]

        async def stuck() -> bool:
            with contextlib.suppress(TimeoutError):
                return not await read_run(mine.channel, here.run_id, 0.5)
            return True

        await eventually(stuck)
        assert await read_run(second, here.run_id)
        waits[0].cancel()
        assert await read_run(mine.channel, here.run_id)
        waits[1].cancel()
