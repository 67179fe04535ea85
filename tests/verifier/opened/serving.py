"""A verifier's service on a port of this process, with the calls of a client."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from banyan.v1 import verifier_service_pb2 as pb
from banyan.v1.verifier_service_pb2_grpc import VerifierServiceStub
from services.chassis.rpc import rpc
from services.verifier.environments.opened.environments import OpenedEnvironments
from services.verifier.environments.opened.opening import Opening
from services.verifier.environments.opened.table import Bounds, Table
from services.verifier.environments.runner import Runner
from services.verifier.environments.stepping import Stepper
from services.verifier.server import NAME, VerifierServer, adder


@dataclass
class Client:
    """The four calls, which raise errors of Banyan's."""

    stub: VerifierServiceStub
    table: Table
    address: str = ""

    async def open(self, environment: str = "", **more: Any) -> str:
        return str((await self.begun(environment, **more)).environment_id)

    async def begun(self, environment: str = "", **more: Any) -> pb.OpenEnvironmentResponse:
        request = pb.OpenEnvironmentRequest(environment=environment, **more)
        response: pb.OpenEnvironmentResponse = await rpc.call(
            self.stub.OpenEnvironment, request, 60.0
        )
        return response

    async def step(self, key: str, action: str, deadline_s: float = 60.0) -> pb.StepResponse:
        request = pb.StepRequest(environment_id=key, action=action)
        response: pb.StepResponse = await rpc.call(self.stub.Step, request, deadline_s)
        return response

    async def fork(self, key: str) -> str:
        response = await rpc.call(self.stub.Fork, pb.ForkRequest(environment_id=key))
        return str(response.environment_id)

    async def close(self, key: str) -> None:
        await rpc.call(self.stub.CloseEnvironment, pb.CloseEnvironmentRequest(environment_id=key))


@contextlib.asynccontextmanager
async def serving(
    *,
    runs: Any = None,
    sessions: Any = None,
    hosts: Any = None,
    bounds: Bounds | None = None,
    clock: Callable[[], float] = time.monotonic,
    secret: str = "",
) -> AsyncIterator[Client]:
    """Yield a client of a service that has no trees."""
    runner, table = Runner(sessions, hosts), Table(bounds, clock)
    opened = OpenedEnvironments(Opening(runs, runner), Stepper(runner), table)
    unused: Any = None
    service = VerifierServer(unused, 1, unused, opened)
    server = await rpc.serve("127.0.0.1:0", [adder(service)], [NAME], secret=secret)
    channel = rpc.channel(server.address, secret=secret)
    try:
        yield Client(VerifierServiceStub(channel), table, server.address)
    finally:
        await channel.close()
        await server.stop(0)
