"""A service's answers for its loops and threads.

Each pulse of it, once late, is NOT_SERVING under `liveness`.
"""

from collections.abc import Iterable

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.rpc import rpc
from services.chassis.rpc.health import LIVENESS, Pulse
from tests.conftest import wait_until

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def answers_for(address: str, pulses: Iterable[str]) -> None:
    """Fail unless each of these pulses alone, once late, makes `address` say NOT_SERVING."""
    async with rpc.channel(address) as channel:
        await wait_until(lambda: _says(channel, SERVING, ""), 30.0, "the service serves")
        await wait_until(lambda: _says(channel, SERVING), 10.0, "no pulse is late")
        for name in pulses:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    Pulse,
                    "late",
                    property(lambda pulse, name=name: "late" if pulse.name == name else ""),
                )
                await wait_until(
                    lambda: _says(channel, NOT_SERVING),
                    10.0,
                    f"health answers for the pulse {name!r}",
                )
        await wait_until(lambda: _says(channel, SERVING), 10.0, "no pulse is late any more")


async def _says(channel: grpc.aio.Channel, status: int, service: str = LIVENESS) -> bool:
    check = health_pb2_grpc.HealthStub(channel).Check
    try:
        return bool(
            (await check(health_pb2.HealthCheckRequest(service=service), timeout=5)).status
            == status
        )
    except grpc.aio.AioRpcError:  # it does not listen yet
        return False
