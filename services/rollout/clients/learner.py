"""Calls of learners: weights as bytes, and hand-overs of weights between processes."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import grpc
import grpc.aio

from banyan.v1.learner_service_pb2 import (
    FetchWeightsRequest,
    FetchWeightsResponse,
    HandOverRequest,
    HandOverResponse,
)
from banyan.v1.learner_service_pb2_grpc import LearnerServiceStub
from banyan.wire.status import error_of
from services.chassis.rpc import rpc
from services.rollout.engines.thread import SLOWEST_B_S
from services.rollout.growth.policy_selection import Published

_FETCH_S = 600.0


class WeightClient:
    """Streams of weights.

    gateway: channel to the gateway, for nodes that cannot reach learners; None to call the learner
        of each policy.
    secret: secret of the learners' ports.
    """

    def __init__(self, gateway: grpc.aio.Channel | None = None, secret: str = "") -> None:
        self._gateway, self._secret = gateway, secret

    async def fetch(self, published: Published, offset: int) -> AsyncIterator[FetchWeightsResponse]:
        """Yield the bytes of a policy from an offset on. Raises BanyanError."""
        channel = self._gateway or rpc.channel(published.address, secret=self._secret)
        request = FetchWeightsRequest(digest=published.policy.digest, offset=offset)
        try:
            with _named(f"fetching weights from {published.address}"):
                stub = LearnerServiceStub(channel)
                async for piece in stub.FetchWeights(request, timeout=_FETCH_S):
                    yield piece
        finally:
            if channel is not self._gateway:
                await channel.close(None)


class HandOverClient:
    """Hand-overs of weights to the workers of one node.

    node_id: name of the node.
    workers: number of its workers that hold weights.
    secret: secret of the learners' ports.
    """

    def __init__(self, node_id: str, workers: int, secret: str = "") -> None:
        self._node_id, self._workers, self._secret = node_id, workers, secret

    async def hand_over(
        self, published: Published, devices: list[str]
    ) -> AsyncGenerator[HandOverResponse, None]:
        """Yield the place where the workers meet the learner, then the news that all was sent.

        devices: accelerators that the workers see.

        Raises BanyanError.
        """
        channel = rpc.channel(published.address, secret=self._secret)
        request = HandOverRequest(
            digest=published.policy.digest,
            node_id=self._node_id,
            workers=self._workers,
            devices=devices,
        )
        timeout = _FETCH_S + published.bytes / SLOWEST_B_S
        try:
            with _named(f"a hand-over of weights from {published.address}"):
                async for response in LearnerServiceStub(channel).HandOver(
                    request, timeout=timeout
                ):
                    yield response
        finally:
            await channel.close(None)


@contextlib.contextmanager
def _named(call: str) -> Iterator[None]:
    """Raise the BanyanError that a failed call stands for."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error, call) from None
