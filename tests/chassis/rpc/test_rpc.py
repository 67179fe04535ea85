"""gRPC: errors keep class and reason, a port in use is one clear error, calls have deadlines."""

import asyncio
import socket

import grpc
import pytest

from banyan.errors import BanyanError, InvalidInput, NotFound, NotReady, Refused, TemporaryError
from banyan.runtime.ports import free_port
from banyan.v1 import learner_service_pb2 as pb
from banyan.v1 import learner_service_pb2_grpc as pb_grpc
from banyan.v1 import treestore_service_pb2 as trees_pb
from banyan.v1 import treestore_service_pb2_grpc as trees_grpc
from banyan.wire.status import error_of, status_of
from services.chassis.rpc import rpc


class Learner(pb_grpc.LearnerServiceServicer):
    """A learner that fails on request."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def GetStatus(self, request, context):
        if self.error:
            raise self.error
        return pb.LearnerServiceGetStatusResponse(run_id="r")

    async def FetchWeights(self, request, context):
        yield pb.FetchWeightsResponse(data=b"x")
        raise NotFound("policy ab is not kept any more; ask for a newer one")


class Trees(trees_grpc.TreeStoreServiceServicer):
    """A store whose every tree is empty."""

    async def GetTree(self, request, context):
        return trees_pb.GetTreeResponse()


async def _server(error: Exception | None = None) -> rpc.RpcServer:
    learner = Learner(error)
    return await rpc.serve(
        "127.0.0.1:0", [lambda s: pb_grpc.add_LearnerServiceServicer_to_server(learner, s)], ["x"]
    )


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("width is -1; use 1 or more"),
        NotFound("no run x"),
        Refused("epoch 1 is stale", "STALE_EPOCH"),
        NotReady("not yet"),
    ],
)
async def test_an_error_keeps_its_class_message_and_reason(error) -> None:
    server = await _server(error)
    async with rpc.channel(server.address) as channel:
        with pytest.raises(type(error)) as caught:
            await rpc.call(
                pb_grpc.LearnerServiceStub(channel).GetStatus, pb.LearnerServiceGetStatusRequest()
            )
    assert (str(caught.value), caught.value.reason) == (str(error), error.reason)
    await server.stop(0)


async def test_a_server_keeps_no_task_for_each_of_its_methods() -> None:
    before = asyncio.all_tasks()
    server = await rpc.serve(
        "127.0.0.1:0",
        [lambda s: trees_grpc.add_TreeStoreServiceServicer_to_server(Trees(), s)],
        ["x"],
    )
    async with rpc.channel(server.address) as channel:
        stub = trees_grpc.TreeStoreServiceStub(channel)
        await rpc.call(stub.GetTree, trees_pb.GetTreeRequest())
        assert len(asyncio.all_tasks() - before) < 10
    await server.stop(0)


@pytest.mark.parametrize("letter", ["a", "%", "\n", "ü", "🌳"])
@pytest.mark.parametrize("length", [1400, 8000, 1_000_000])
async def test_a_long_message_loses_its_middle_and_not_the_status(letter: str, length: int) -> None:
    """Above 8 KiB of headers gRPC drops the whole status, and the caller could not tell why."""
    server = await _server(Refused(f"tree {letter * length} is stale", "STALE_EPOCH"))
    async with rpc.channel(server.address) as channel:
        with pytest.raises(Refused, match=r"^tree (.|\n)* is stale$") as caught:
            await rpc.call(
                pb_grpc.LearnerServiceStub(channel).GetStatus, pb.LearnerServiceGetStatusRequest()
            )
    assert caught.value.reason == "STALE_EPOCH" and len(str(caught.value)) > 300
    await server.stop(0)


async def test_details_of_another_status_than_the_code_are_not_read() -> None:
    """As of a server that is not ours, or of a status that gRPC itself replaced."""

    class Odd(Learner):
        async def GetStatus(self, request, context):
            other = status_of(NotFound("no run x"))
            context.set_trailing_metadata(other.trailing_metadata)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "odd")

    def add(to: grpc.aio.Server) -> None:
        pb_grpc.add_LearnerServiceServicer_to_server(Odd(), to)

    server = await rpc.serve("127.0.0.1:0", [add], ["x"])
    async with rpc.channel(server.address) as channel:
        with pytest.raises(InvalidInput, match="odd"):
            await rpc.call(
                pb_grpc.LearnerServiceStub(channel).GetStatus, pb.LearnerServiceGetStatusRequest()
            )
    await server.stop(0)


async def test_a_call_that_its_server_cancels_may_be_made_again() -> None:
    """Of more than a thousand that wait for a server's loop gRPC itself cancels some."""

    class Crowded(Learner):
        def __init__(self) -> None:
            self.calls = 0

        async def GetStatus(self, request, context):
            self.calls += 1
            if self.calls == 1:
                await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
            return pb.LearnerServiceGetStatusResponse(run_id="r")

    def add(to: grpc.aio.Server) -> None:
        pb_grpc.add_LearnerServiceServicer_to_server(Crowded(), to)

    server = await rpc.serve("127.0.0.1:0", [add], ["x"])
    async with rpc.channel(server.address) as channel:
        status = pb_grpc.LearnerServiceStub(channel).GetStatus
        answer = await rpc.call(status, pb.LearnerServiceGetStatusRequest(), patience_s=10)
        assert answer.run_id == "r"
    await server.stop(0)


async def test_an_unexpected_error_shows_no_traceback() -> None:
    server = await _server(RuntimeError("secret"))
    async with rpc.channel(server.address) as channel:
        with pytest.raises(Exception, match="log has the details") as caught:
            await rpc.call(
                pb_grpc.LearnerServiceStub(channel).GetStatus, pb.LearnerServiceGetStatusRequest()
            )
    assert "secret" not in str(caught.value)
    await server.stop(0)


async def test_a_stream_fails_with_its_reason_after_what_it_sent() -> None:
    from banyan.wire.status import error_of

    server = await _server()
    async with rpc.channel(server.address) as channel:
        seen = []
        with pytest.raises(Exception) as caught:
            async for piece in pb_grpc.LearnerServiceStub(channel).FetchWeights(
                pb.FetchWeightsRequest()
            ):
                seen.append(piece.data)
    assert seen == [b"x"] and isinstance(error_of(caught.value, "x"), NotFound)
    await server.stop(0)


async def test_a_port_in_use_is_one_clear_error() -> None:
    server = await _server()
    with pytest.raises(InvalidInput, match=r"in use, and was for 0\.2 s"):
        await rpc.serve(server.address, [], [], patience_s=0.2)
    await server.stop(0)


async def test_a_port_that_is_taken_for_a_while_is_waited_for() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        serving = asyncio.create_task(rpc.serve(address, [], []))
        done, _ = await asyncio.wait([serving], timeout=0.5)
        assert not done
    server = await asyncio.wait_for(serving, 10)
    assert server.address == address
    await server.stop(0)


@pytest.mark.parametrize("address", ["192.0.2.1:7100", "nowhere.invalid:7100"])
async def test_an_address_of_another_host_is_refused_at_once(address: str) -> None:
    with pytest.raises(InvalidInput, match="not this host's"):
        await asyncio.wait_for(rpc.serve(address, [], []), 5)


async def test_a_call_waits_for_a_server_that_comes_up_but_not_for_ever() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with rpc.channel(address) as channel:
        stub = pb_grpc.LearnerServiceStub(channel)
        with pytest.raises(TemporaryError):
            await rpc.call(stub.GetStatus, pb.LearnerServiceGetStatusRequest(), 1.0, 0.3)
        waiting = asyncio.create_task(
            rpc.call(stub.GetStatus, pb.LearnerServiceGetStatusRequest(), 5.0, 20.0)
        )
        adder = lambda s: pb_grpc.add_LearnerServiceServicer_to_server(Learner(), s)  # noqa: E731
        server = await rpc.serve(address, [adder], [])
        assert (await waiting).run_id == "r"
        await server.stop(0)


@pytest.mark.parametrize(
    ("said", "raised"),
    [("Internal error from Core", TemporaryError), ("Internal error from Rust", BanyanError)],
)
def test_a_stream_that_was_ended_while_it_sent_is_worth_another_attempt(
    said: str, raised: type[BanyanError]
) -> None:
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, said)
    assert type(error_of(error, "the store")) is raised
