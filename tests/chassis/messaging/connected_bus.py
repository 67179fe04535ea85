"""A bus on a broker with the log's streams, and an assignment to publish."""

from banyan.v1 import events_pb2
from services.chassis.messaging.bus import Bus
from tests.broker import NatsServer


async def connected(server: NatsServer) -> Bus:
    bus = await Bus.connect(server.url, "test")
    await bus.ensure_streams()
    return bus


def grow(name: str) -> events_pb2.GrowTree:
    return events_pb2.GrowTree(run_id="r", tree_id=name.encode())
