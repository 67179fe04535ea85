"""Calls that are for holders of the system's secret alone, and that no joined node may make."""

import pytest

from banyan.errors import Refused
from banyan.v1 import verifier_service_pb2 as pb
from banyan.v1.verifier_service_pb2_grpc import VerifierServiceStub
from services.chassis.rpc import rpc
from services.gateway.join import client
from tests.gateway.live_site import node_channel


async def test_no_joined_node_holds_environments(here, tmp_path) -> None:
    token = await here.token(here.run_id)
    env = await client.admit(here.running.join_address, token, tmp_path / "node")
    async with node_channel(env) as opened:
        verifier = VerifierServiceStub(opened)
        for method, request in (
            (verifier.OpenEnvironment, pb.OpenEnvironmentRequest(run_id=here.run_id)),
            (verifier.Step, pb.StepRequest(environment_id="x")),
            (verifier.Fork, pb.ForkRequest(environment_id="x")),
            (verifier.CloseEnvironment, pb.CloseEnvironmentRequest(environment_id="x")),
        ):
            with pytest.raises(Refused, match="joined nodes may not call") as refused:
                await rpc.call(method, request)
            assert refused.value.reason == "PERMISSION_DENIED"
