"""A call that is idle for long stays open: client and server agree on the rate of pings."""

import asyncio

from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.rpc import rpc

QUIET_S = 75.0  # three pings; a server that did not expect them has said goodbye after the third


async def test_a_quiet_stream_is_not_cut() -> None:
    """In `make test`, where other tests compute while it waits."""
    server = await rpc.serve("127.0.0.1:0", [], [])
    async with rpc.channel(server.address) as channel:
        news = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await news.read()).status == health_pb2.HealthCheckResponse.SERVING
        reading = asyncio.ensure_future(news.read())
        done, _ = await asyncio.wait([reading], timeout=QUIET_S)
        assert not done, "nothing was to be said, so the call was cut"
        news.cancel()
        await asyncio.wait([reading])
    await server.stop()
