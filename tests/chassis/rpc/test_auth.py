"""The secret of the ports: with it every kind of call works, without it the health service only."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from banyan.errors import InvalidInput, Refused
from banyan.runtime import secret as secret_module
from banyan.v1 import learner_service_pb2 as pb
from banyan.v1 import learner_service_pb2_grpc as pb_grpc
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from banyan.wire.status import error_of
from services.chassis.process.settings import Settings, read
from services.chassis.rpc import rpc

SECRET = "5" * 64


class Learner(pb_grpc.LearnerServiceServicer):
    async def GetStatus(self, request, context):
        return pb.LearnerServiceGetStatusResponse(run_id="r")

    async def FetchWeights(self, request, context):
        yield pb.FetchWeightsResponse(data=b"x")


class Store(ts_grpc.TreeStoreServiceServicer):
    async def PutBlob(self, requests, context):
        [_ async for _ in requests]
        return ts.PutBlobResponse()


@pytest.fixture
async def guarded():
    adders = [
        lambda s: pb_grpc.add_LearnerServiceServicer_to_server(Learner(), s),
        lambda s: ts_grpc.add_TreeStoreServiceServicer_to_server(Store(), s),
    ]
    server = await rpc.serve(
        "127.0.0.1:0", adders, ["x"], secret=SECRET, secret_file="/state/secret"
    )
    yield server
    await server.stop(0)


def _blob():
    yield ts.PutBlobRequest(chunk=b"x")


def _reflect():
    yield reflection_pb2.ServerReflectionRequest(list_services="")


async def _every_shape(channel):
    """Make one call of each kind, and yield the results."""
    learner, store = pb_grpc.LearnerServiceStub(channel), ts_grpc.TreeStoreServiceStub(channel)
    info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    yield lambda: rpc.call(learner.GetStatus, pb.LearnerServiceGetStatusRequest())
    yield lambda: anext(aiter(learner.FetchWeights(pb.FetchWeightsRequest(), timeout=5)))
    yield lambda: _awaited(store.PutBlob(_blob(), timeout=5))
    yield lambda: anext(aiter(info(_reflect(), timeout=5)))


async def _awaited(call):
    return await call


async def test_with_the_secret_calls_of_every_shape_work(guarded) -> None:
    async with rpc.channel(guarded.address, secret=SECRET) as channel:
        assert len([await call() async for call in _every_shape(channel)]) == 4


async def _error(call) -> Exception:
    """Return the error of a call, from a try in which gRPC kept it.

    A refusal that overtakes the client's message makes its writing fail, and grpc.aio then raises
    that failure instead of the refusal.
    """
    for _ in range(20):
        with pytest.raises((Refused, grpc.aio.AioRpcError)) as failed:
            await call()
        if "SendMessageOperation" not in str(failed.value):
            break
    return failed.value


@pytest.mark.parametrize("shown", ["", "wrong", SECRET[:-1], SECRET + "5"])
async def test_without_it_none_is_answered_and_the_message_names_the_file(guarded, shown) -> None:
    async with rpc.channel(guarded.address, secret=shown) as channel:
        async for call in _every_shape(channel):
            error = await _error(call)
            assert "/state/secret" in str(error)
            if isinstance(error, grpc.aio.AioRpcError):
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED
                error = error_of(error, "x")
            assert error.reason == "UNAUTHENTICATED" and SECRET not in str(error)


async def test_bytes_and_repeated_keys_do_not_get_past_it(guarded) -> None:
    async with rpc.channel(guarded.address) as channel:
        status = pb_grpc.LearnerServiceStub(channel).GetStatus
        for metadata in (
            (("banyan-secret", ""),),
            (("banyan-secret", "x"), ("banyan-secret", SECRET)),
        ):
            with pytest.raises(Refused, match="/state/secret"):
                await rpc.call(status, pb.LearnerServiceGetStatusRequest(), metadata=metadata)


async def test_probes_need_no_secret(guarded) -> None:
    async with rpc.channel(guarded.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=5
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_secret_is_made_once_of_256_bits_and_is_its_owners(tmp_path) -> None:
    made = secret_module.make(tmp_path / "secret")
    assert len(bytes.fromhex(made)) == 32 and secret_module.make(tmp_path / "secret") == made
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert secret_module.make(tmp_path / "other") != made
    (tmp_path / "secret").write_text("")  # a process was killed as it made it
    assert len(secret_module.make(tmp_path / "secret")) == 64


def test_settings_read_the_file_and_do_not_show_it(tmp_path) -> None:
    made = secret_module.make(tmp_path / "secret")
    settings = read(Settings, {"BANYAN_SECRET_FILE": str(tmp_path / "secret")})
    assert settings.secret == made and made not in repr(settings)
    assert read(Settings, {}).secret == ""
    (tmp_path / "short").write_text("abc")
    for name, message in (("none", "cannot be read"), ("short", "at least 32 characters")):
        with pytest.raises(InvalidInput, match=message):
            _ = read(Settings, {"BANYAN_SECRET_FILE": str(tmp_path / name)}).secret
