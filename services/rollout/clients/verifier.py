"""The verifier over gRPC: answers of environments to actions."""

import grpc.aio

from banyan.environments.endings import Ending
from banyan.v1 import verifier_service_pb2 as pb
from banyan.v1 import verifier_service_pb2_grpc
from banyan.wire import endings, receipts
from services.chassis.rpc import rpc
from services.rollout.growth.segments import ToolAnswer

_GRACE_S = 10.0  # beyond the deadline, for the way there and back


class GrpcEnvironments:
    """The calls of one node (`services.rollout.ports.Environments`)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)

    async def act(
        self, tree_id: bytes, epoch: int, action: bytes, *, call: str, deadline_s: float
    ) -> ToolAnswer | Ending:
        """Return the answer to an action, or the word that it gets none."""
        request = pb.ActRequest(
            tree_id=tree_id,
            epoch=epoch,
            action=action,
            call=call,
            deadline_ms=int(1000 * deadline_s),
        )
        response: pb.ActResponse = await rpc.call(self._stub.Act, request, deadline_s + _GRACE_S)
        if response.HasField("ending"):
            return endings.from_wire(response.ending)
        return ToolAnswer(receipts.from_wire(response.receipt), response.text)
