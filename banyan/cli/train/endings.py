"""Waits at the end of a run, before its services end."""

import asyncio
import time

from banyan.errors import BanyanError
from banyan.runtime.waiting import Waiting
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from services.chassis.rpc import rpc
from services.supervisor.fleet import GRACE_S
from services.supervisor.supervisor import Supervisor

LEAVING_S = 10.0  # a node polls every second, then drains


async def leaving(gateway: "gw_grpc.GatewayServiceAsyncStub", run_id: str) -> None:
    """Wait until joined nodes have left, which learn from the gateway that the run is over."""
    end = time.monotonic() + LEAVING_S
    while time.monotonic() < end:
        request = gw.ListMembersRequest(run_id=run_id)
        try:
            members = (await rpc.call(gateway.ListMembers, request, 5.0, 5.0)).members
        except BanyanError:
            return  # without a gateway nodes cannot learn it
        if not any(m.joined and m.present for m in members):
            return
        await asyncio.sleep(0.2)


async def checkpoint(supervisor: Supervisor, run_id: str, interrupted: asyncio.Event) -> None:
    """Wait until the learner of a stopped run has written its checkpoint, for the report."""
    name, end = f"learner-{run_id}-", time.monotonic() + GRACE_S["learner"]

    def writes() -> bool:
        return any(
            key.startswith(name) and child.running for key, child in supervisor.children.items()
        )

    if not writes():
        return
    with Waiting("the learner writes a checkpoint"):
        while writes() and not interrupted.is_set() and time.monotonic() < end:
            await asyncio.sleep(0.2)
