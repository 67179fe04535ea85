"""`ports.Learners` over gRPC."""

from banyan.errors import TemporaryError
from banyan.v1 import learner_service_pb2 as pb
from banyan.v1.learner_service_pb2_grpc import LearnerServiceStub
from services.chassis.rpc import rpc
from services.gateway.domain.ports import Store

_WRITE_S = 600.0  # a checkpoint of a large model on a slow disk


class RpcLearners:
    """Client of the learners of runs. A run's newest policy names its learner's address."""

    def __init__(self, store: Store, secret: str = "") -> None:
        self._store, self._secret = store, secret

    async def checkpoint(self, run_id: str) -> str:
        policies = await self._store.read_policies(run_id, newest=1)
        if not policies:
            raise TemporaryError(f"run {run_id} has no policy yet: no checkpoint can be written")
        async with rpc.channel(policies[-1].published.address, secret=self._secret) as channel:
            answer: pb.CheckpointResponse = await rpc.call(
                LearnerServiceStub(channel).Checkpoint, pb.CheckpointRequest(), _WRITE_S, 5.0
            )
        return answer.path
