"""gRPC: errors keep class and reason, a port in use is one clear error, calls have deadlines."""

import asyncio
import socket

import pytest

from banyan.errors import InvalidInput, NotFound, NotReady, Refused, TemporaryError
from banyan.v1 import learner_service_pb2 as pb
from banyan.v1 import learner_service_pb2_grpc as pb_grpc
from services.chassis.process.nats_server import free_port
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
