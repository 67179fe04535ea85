"""RolloutService: ad-hoc expansion, spot checks, status and drain."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import grpc.aio
import numpy as np

from banyan.draws import key
from banyan.errors import InvalidInput
from banyan.segment import IntTokens, Sampling
from banyan.v1 import rollout_service_pb2, rollout_service_pb2_grpc, tree_pb2
from banyan.wire import segments
from banyan.wire.segments import policy_to_wire
from services.rollout.engines.port import Request, Sampled
from services.rollout.engines.thread import EngineThread
from services.rollout.node.node import Node

NAME = rollout_service_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name
_MOST_BRANCHES = 256
_WAIT_S = 600.0


class CallKey(NamedTuple):
    """Key of a branch that belongs to a call and to no tree."""

    call: int
    branch: int


class RolloutServer(rollout_service_pb2_grpc.RolloutServiceServicer):
    """The service of one node."""

    def __init__(self, node: Node, thread: EngineThread) -> None:
        self._node, self._thread = node, thread
        self._calls = itertools.count()

    async def Expand(
        self, request: rollout_service_pb2.RolloutServiceExpandRequest, context: Any
    ) -> AsyncIterator[rollout_service_pb2.RolloutServiceExpandResponse]:
        """Sample continuations of a prefix; yield each as it ends."""
        sampling = segments.sampling_from_wire(request.sampling)
        if not 1 <= request.branches <= _MOST_BRANCHES or not request.tokens:
            raise InvalidInput(
                f"Expand needs 1..{_MOST_BRANCHES} branches and a prefix,"
                f" got {request.branches} branches"
            )
        prefix_P = np.array(request.tokens, np.int32)
        requests = self._requests(prefix_P, sampling, request.branches)
        keys = [request.key for request in requests]
        ended: asyncio.Queue[Sampled] = asyncio.Queue(len(requests))
        treeless_queues = self._node.executor.treeless_queues
        treeless_queues.update(dict.fromkeys(keys, ended))
        try:
            for refusal in await asyncio.wrap_future(self._thread.submit(requests)):
                raise InvalidInput(refusal.reason)
            for _ in requests:
                async with asyncio.timeout(_WAIT_S):
                    sample = await ended.get()
                yield self._response(sample)
        finally:
            for request_key in keys:
                treeless_queues.pop(request_key, None)
            await self._thread.abort(keys)

    async def LogProbs(
        self, request: rollout_service_pb2.LogProbsRequest, context: Any
    ) -> rollout_service_pb2.LogProbsResponse:
        """Return log-probs of the given tokens under the policy in use."""
        tokens_T = np.array(request.tokens, np.int32)
        logprobs = await self._thread.logprobs(tokens_T, request.first, request.temperature)
        return rollout_service_pb2.LogProbsResponse(
            logprobs=logprobs.tolist(), policy=self._policy()
        )

    async def GetStatus(
        self, request: rollout_service_pb2.RolloutServiceGetStatusRequest, context: Any
    ) -> rollout_service_pb2.RolloutServiceGetStatusResponse:
        """Return the state of the node."""
        stats = await self._thread.stats()
        return rollout_service_pb2.RolloutServiceGetStatusResponse(
            node_id=self._node.config.node_id,
            run_id=self._node.config.run_id,
            policy=self._policy(),
            trees=len(self._node.trees),
            branches=stats.running,
            sampled_tokens=stats.sampled_tokens,
            prefilled_tokens=stats.prefilled_tokens,
            cached_tokens=stats.cached_tokens,
            draining=self._node.trees.draining,
        )

    async def Drain(
        self, request: rollout_service_pb2.DrainRequest, context: Any
    ) -> rollout_service_pb2.DrainResponse:
        """Return the trees of the node, which then ends."""
        deadline_s = request.deadline_ms / 1000 or self._node.config.drain_s
        returned = await self._node.drain(deadline_s)
        return rollout_service_pb2.DrainResponse(returned=returned)

    def _requests(self, prefix_P: IntTokens, sampling: Sampling, branches: int) -> list[Request]:
        call = next(self._calls)
        return [
            Request(
                key=CallKey(call, branch),
                prefix_P=prefix_P,
                draw_key=key(sampling.seed, "expand", branch),
                sampling=sampling,
            )
            for branch in range(branches)
        ]

    def _response(self, sample: Sampled) -> rollout_service_pb2.RolloutServiceExpandResponse:
        assert isinstance(sample.key, CallKey)
        return rollout_service_pb2.RolloutServiceExpandResponse(
            branch=sample.key.branch,
            tokens=sample.tokens_T.tolist(),
            logprobs=sample.logprobs_T.tolist(),
            finish=tree_pb2.SegmentFinish.ValueType(sample.finish),
            text=self._thread.tokenizer.decode(sample.tokens_T),
        )

    def _policy(self) -> tree_pb2.PolicyRef | None:
        loaded = self._node.refresher.loaded
        return policy_to_wire(loaded) if loaded is not None else None


def adder(server: RolloutServer) -> Callable[[grpc.aio.Server], None]:
    """Return a function that adds the service to a gRPC server."""
    add = rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server
    return lambda grpc_server: add(server, grpc_server)
