"""A system of all five services: none of its ports accepts a call without the secret."""

from pathlib import Path

import pytest

from banyan.errors import BanyanError, DeadlineMissed
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from tests.faults.harness import recipe, system, tiny_model

pytestmark = pytest.mark.faults

CALLS = {
    "treestore": "/banyan.v1.TreeStoreService/GetStats",
    "gateway": "/banyan.v1.GatewayService/ListRuns",
    "verifier": "/banyan.v1.VerifierService/CloseEnvironment",
    "rollout": "/banyan.v1.RolloutService/GetStatus",
    "learner": "/banyan.v1.LearnerService/GetStatus",
}


async def _said(address: str, method: str, secret: str) -> str:
    """Return the reason of a refusal; empty for an answer."""
    async with rpc.channel(address, secret=secret) as channel:
        try:
            await rpc.call(channel.unary_unary(method), b"", 10.0, 10.0)
        except BanyanError as error:
            return error.reason or "?"
    return ""


async def test_no_port_of_a_run_answers_a_stranger_or_describes_itself(tmp_path: Path) -> None:
    async with system(tmp_path / "s") as made:
        await made.create(recipe(tiny_model(tmp_path / "m")))
        await made.reach(1)
        children = {c.service: c.health for c in made.supervisor.children.values() if c.health}
        broker = children.pop("nats")
        assert children.keys() == CALLS.keys()
        secret = made.supervisor.fleet.state.secret
        for service, method in CALLS.items():
            assert await _said(children[service], method, secret) != "UNAUTHENTICATED", service
            for wrong in ("", "0" * 64):
                assert await _said(children[service], method, wrong) == "UNAUTHENTICATED", service
            reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            assert await _said(children[service], reflection, "") == "UNAUTHENTICATED", service
        with pytest.raises(DeadlineMissed, match="Authorization Violation"):
            await Bus.connect(broker, "a stranger", patience_s=5.0)
