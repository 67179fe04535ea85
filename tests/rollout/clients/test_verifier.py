"""Answers of the verifier over real gRPC, and its word that an action gets none."""

from typing import Any

from banyan.environments.endings import Ending
from banyan.environments.receipts import Receipt
from services.chassis.rpc import rpc
from services.rollout.clients.verifier import GrpcEnvironments
from services.rollout.growth.segments import ToolAnswer
from services.verifier.server import NAME, VerifierServer, adder
from tests.banyan.environments.test_observation import SEEN

RECEIPT = Receipt(SEEN, b"m" * 32, "2 * 3")
ENDING = Ending(b"p" * 32, "ENVIRONMENT_DIVERGED", "otherwise", b"e" * 32)


class Actions:
    """A verifier that answers the action a, and has none for others."""

    async def act(self, tree_id: bytes, epoch: int, action: bytes, **named: Any) -> Any:
        assert (tree_id, epoch, named["call"], named["deadline_s"]) == (b"t", 7, "2 * 3", 1.5)
        return (RECEIPT, "6") if action == b"a" else ENDING


async def test_an_answer_and_an_ending_arrive_as_they_were_given() -> None:
    actions: Any = Actions()
    unused: Any = None
    service = VerifierServer(unused, 1, actions, unused)
    server = await rpc.serve("127.0.0.1:0", [adder(service)], [NAME])
    channel = rpc.channel(server.address)
    verifier = GrpcEnvironments(channel)
    try:
        answers = [
            await verifier.act(b"t", 7, action, call="2 * 3", deadline_s=1.5)
            for action in (b"a", b"b")
        ]
    finally:
        await channel.close(None)
        await server.stop(0)
    assert answers == [ToolAnswer(RECEIPT, "6"), ENDING]
