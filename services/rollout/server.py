"""RolloutService: ad-hoc expansion, spot checks, status and drain."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import numpy as np

from banyan.draws import key
from banyan.errors import InvalidInput
from banyan.segment import Sampling
from banyan.v1 import rollout_service_pb2, rollout_service_pb2_grpc, tree_pb2
from banyan.wire import segments
from banyan.wire.segments import policy_to_wire
from services.rollout.engines.port import Request, Sampled
from services.rollout.engines.thread import EngineThread
from services.rollout.node.node import Node

NAME = rollout_service_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name
_MOST_BRANCHES = 256
_WAIT_S = 600.0


class RolloutServer(rollout_service_pb2_grpc.RolloutServiceServicer):
    """Speaks for a node."""

    def __init__(self, node: Node, thread: EngineThread) -> None:
        self._node, self._thread = node, thread
        self._calls = itertools.count()

    async def Expand(
        self, request: rollout_service_pb2.RolloutServiceExpandRequest, context: Any
    ) -> AsyncIterator[rollout_service_pb2.RolloutServiceExpandResponse]:
        """Samples continuations of a prefix, each as it ends."""
        sampling = segments.sampling_from_wire(request.sampling)
        if not 1 <= request.branches <= _MOST_BRANCHES or not request.tokens:
            raise InvalidInput(
                f"Expand needs 1..{_MOST_BRANCHES} branches and a prefix, got {request.branches} branches"
            )
        asked = self._requests(np.array(request.tokens, np.int32), sampling, request.branches)
        ended: asyncio.Queue[Sampled] = asyncio.Queue(len(asked))
        self._node.visitors.update({r.key: ended for r in asked})
        try:
            for refusal in await asyncio.wrap_future(self._thread.submit(asked)):
                raise InvalidInput(refusal.reason)
            for _ in asked:
                async with asyncio.timeout(_WAIT_S):
                    sampled = await ended.get()
                yield self._response(sampled)
        finally:
            for r in asked:
                self._node.visitors.pop(r.key, None)
            await self._thread.abort([r.key for r in asked])

    def _requests(self, prefix: Any, sampling: Sampling, branches: int) -> list[Request]:
        call = next(self._calls)
        keys = [("expand", call, branch) for branch in range(branches)]
        return [Request(k, prefix, key(sampling.seed, "expand", k[2]), sampling) for k in keys]

    def _response(self, sampled: Sampled) -> rollout_service_pb2.RolloutServiceExpandResponse:
        assert isinstance(sampled.key, tuple)
        return rollout_service_pb2.RolloutServiceExpandResponse(
            branch=sampled.key[2],
            tokens=sampled.tokens_T.tolist(),
            logprobs=sampled.logprobs_T.tolist(),
            finish=tree_pb2.SegmentFinish.ValueType(sampled.finish),
            text=self._thread.tokenizer.decode(sampled.tokens_T),
        )

    async def LogProbs(
        self, request: rollout_service_pb2.LogProbsRequest, context: Any
    ) -> rollout_service_pb2.LogProbsResponse:
        """Log-probs of given tokens under the policy in use."""
        tokens = np.array(request.tokens, np.int32)
        values = await self._thread.logprobs(tokens, request.first, request.temperature)
        return rollout_service_pb2.LogProbsResponse(logprobs=values.tolist(), policy=self._policy())

    async def GetStatus(
        self, request: rollout_service_pb2.RolloutServiceGetStatusRequest, context: Any
    ) -> rollout_service_pb2.RolloutServiceGetStatusResponse:
        """What the node does."""
        stats = await self._thread.stats()
        return rollout_service_pb2.RolloutServiceGetStatusResponse(
            node_id=self._node.plan.node_id,
            run_id=self._node.plan.run_id,
            policy=self._policy(),
            trees=len(self._node.trees),
            branches=stats.running,
            sampled_tokens=stats.sampled_tokens,
            prefilled_tokens=stats.prefilled_tokens,
            cached_tokens=stats.cached_tokens,
            draining=self._node.draining,
        )

    async def Drain(
        self, request: rollout_service_pb2.DrainRequest, context: Any
    ) -> rollout_service_pb2.DrainResponse:
        """Hands the trees back; then the node ends."""
        returned = await self._node.drain(request.deadline_ms / 1000 or self._node.plan.drain_s)
        return rollout_service_pb2.DrainResponse(returned=returned)

    def _policy(self) -> tree_pb2.PolicyRef | None:
        loaded = self._node.refresher.loaded
        if loaded is None:
            return None
        return policy_to_wire(loaded)


def adder(server: RolloutServer) -> Callable[[grpc.aio.Server], None]:
    """What puts the service onto a gRPC server."""
    return lambda grpc_server: rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server(
        server, grpc_server
    )
