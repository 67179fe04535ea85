"""The tree store over gRPC, and the weights that a learner (or, for joined nodes, the gateway) hands out."""

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio

from banyan.digest import blake
from banyan.v1 import (
    learner_service_pb2,
    learner_service_pb2_grpc,
    runstore_service_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2,
    treestore_service_pb2_grpc,
)
from banyan.wire.status import error_of
from services.chassis.rpc import rpc
from services.rollout.clients.claim_batcher import Claims, Renewals
from services.rollout.clients.ingest_batcher import Ingests
from services.rollout.engines.thread import SLOWEST_B_S
from services.rollout.growth.policy_selection import Published, from_wire
from services.rollout.ports import Awaited, Claim, Ingested

_CALL_S = 10.0
_PATIENCE_S = 20.0  # a treestore that is started again serves well within this
_FETCH_S = 600.0
_BLOB_S = 60.0
_PIECE_BYTES = 1 << 20
_POLICIES = 64  # more than are ever wanted: the newest, or one that trees ask for which still grow


class GrpcStore:
    """Calls of one node of one run."""

    def __init__(
        self, channel: grpc.aio.Channel, run_id: str, node_id: str, joined: bool = False
    ) -> None:
        self._trees = treestore_service_pb2_grpc.TreeStoreServiceStub(channel)
        self._runs = runstore_service_pb2_grpc.RunStoreServiceStub(channel)
        self._run_id, self._node_id, self._joined = run_id, node_id, joined
        self._claims, self._ingests = Claims(self._claim_trees), Ingests(self._await_ingested)
        self._renewals = Renewals(self._renew_claims)

    async def run(self) -> runstore_service_pb2.Run:
        """The run."""
        request = runstore_service_pb2.ReadRunRequest(run_id=self._run_id)
        answer: runstore_service_pb2.ReadRunResponse = await rpc.call(
            self._runs.ReadRun, request, _CALL_S, _PATIENCE_S
        )
        return answer.run

    async def policies(self) -> list[Published]:
        """The newest policies that are not abandoned."""
        request = runstore_service_pb2.ReadPoliciesRequest(run_id=self._run_id, newest=_POLICIES)
        answer = await rpc.call(self._runs.ReadPolicies, request, _CALL_S, _PATIENCE_S)
        return [from_wire(p.published) for p in answer.policies if not p.abandoned]

    async def claim(self, tree_id: bytes, ticket: int, traceparent: str = "") -> Claim:
        """Takes a tree."""
        request = treestore_service_pb2.ClaimTreeRequest(
            tree_id=tree_id, node_id=self._node_id, ticket=ticket, traceparent=traceparent
        )
        answer = await self._claims.ask(request)
        if answer.streamed:
            answer.tree.segments.extend(await self._claimed(tree_id, answer.epoch))
        return Claim(answer.epoch, answer.tree, answer.first_traceparent)

    async def _claimed(self, tree_id: bytes, epoch: int) -> list[tree_pb2.Segment]:
        """The segments of a tree that is too large for an answer."""
        request, found = (
            treestore_service_pb2.StreamClaimedRequest(tree_id=tree_id, epoch=epoch),
            list[tree_pb2.Segment](),
        )
        try:
            async for part in self._trees.StreamClaimed(request, timeout=_FETCH_S):
                found.extend(part.segments)
        except grpc.RpcError as error:
            raise error_of(error, f"the segments of tree {tree_id.hex()[:12]}") from None
        return found

    async def _claim_trees(self, request: treestore_service_pb2.ClaimTreesRequest) -> Any:
        return await rpc.call(self._trees.ClaimTrees, request, _CALL_S, _PATIENCE_S)

    async def _await_ingested(
        self, request: treestore_service_pb2.AwaitTreesIngestedRequest
    ) -> Any:
        return await rpc.call(self._trees.AwaitTreesIngested, request, _CALL_S, _PATIENCE_S)

    async def put_blob(self, tree_id: bytes, epoch: int, data: bytes) -> None:
        """Sends a blob in pieces."""

        def attempt(_: None, timeout: float, metadata: tuple[tuple[str, str], ...]) -> Any:
            return self._trees.PutBlob(
                _pieces(tree_id, epoch, data), timeout=timeout, metadata=metadata
            )

        await rpc.call(attempt, None, _BLOB_S)

    async def renew(self, tree_id: bytes, epoch: int) -> None:
        """Keeps a claim."""
        request = treestore_service_pb2.RenewClaimRequest(tree_id=tree_id, epoch=epoch)
        await self._renewals.ask(request)

    async def _renew_claims(self, request: treestore_service_pb2.RenewClaimsRequest) -> Any:
        return await rpc.call(self._trees.RenewClaims, request, _CALL_S)

    async def give_back(self, tree_id: bytes, epoch: int, reason: str) -> None:
        """Ends a claim."""
        request = treestore_service_pb2.ReturnTreeRequest(
            tree_id=tree_id, epoch=epoch, reason=reason
        )
        await rpc.call(self._trees.ReturnTree, request, _CALL_S, _CALL_S)

    async def ingested(
        self, tree_id: bytes, epoch: int, segments: Sequence[bytes], deadline_s: float
    ) -> Ingested:
        """Waits for the store."""
        request = treestore_service_pb2.AwaitIngestedRequest(
            tree_id=tree_id,
            epoch=epoch,
            segment_ids=segments,
            grown=True,
            deadline_ms=int(1000 * deadline_s),
        )
        answer = await self._ingests.ask(request)
        return Ingested(
            frozenset(answer.missing), answer.grown, tuple(r.reason for r in answer.refused)
        )

    async def awaited(
        self, tree_id: bytes, epoch: int, known: int, round: int | None, deadline_s: float
    ) -> Awaited:
        """Waits for scores and room."""
        request = treestore_service_pb2.AwaitScoresRequest(
            tree_id=tree_id,
            epoch=epoch,
            known=known,
            deadline_ms=int(1000 * deadline_s),
            room_known=round,
        )
        answer = await rpc.call(self._trees.AwaitScores, request, deadline_s + _CALL_S, _PATIENCE_S)
        return Awaited(list(answer.scores), answer.room if answer.HasField("room") else None)

    async def begin(self) -> None:
        """Notes that this node has started, before it claims anything: what it held when it died is free at once."""
        await rpc.call(self._runs.PutMember, self._member(0, begins=True), _CALL_S, _PATIENCE_S)

    async def present(self, trees: int, leaving: bool = False) -> None:
        """Notes this node."""
        await rpc.call(self._runs.PutMember, self._member(trees, leaving=leaving), _CALL_S)

    def _member(self, trees: int, **said: bool) -> runstore_service_pb2.PutMemberRequest:
        member = runstore_service_pb2.Member(
            node_id=self._node_id,
            run_id=self._run_id,
            host=socket.gethostname(),
            joined=self._joined,
            trees=trees,
        )
        return runstore_service_pb2.PutMemberRequest(member=member, **said)


def _pieces(
    tree_id: bytes, epoch: int, data: bytes
) -> Iterator[treestore_service_pb2.PutBlobRequest]:
    yield treestore_service_pb2.PutBlobRequest(
        tree_id=tree_id, epoch=epoch, digest=blake(data), size=len(data)
    )
    for start in range(0, len(data), _PIECE_BYTES):
        yield treestore_service_pb2.PutBlobRequest(chunk=data[start : start + _PIECE_BYTES])


class WeightServer:
    """Streams weights. `through` is the gateway's channel for nodes that cannot reach the learner."""

    def __init__(self, through: grpc.aio.Channel | None = None, secret: str = "") -> None:
        self._through, self._secret = through, secret

    async def fetch(
        self, published: Published, offset: int
    ) -> AsyncIterator[learner_service_pb2.FetchWeightsResponse]:
        """A policy's bytes from an offset on. Raises BanyanError."""
        channel = self._through or rpc.channel(published.address, secret=self._secret)
        try:
            stub = learner_service_pb2_grpc.LearnerServiceStub(channel)
            request = learner_service_pb2.FetchWeightsRequest(
                digest=published.policy.digest, offset=offset
            )
            async for piece in stub.FetchWeights(request, timeout=_FETCH_S):
                yield piece
        except grpc.RpcError as error:
            raise error_of(error, f"fetching weights from {published.address}") from None
        finally:
            if channel is not self._through:
                await channel.close(None)


class HandOvers:
    """Asks learners to hand weights over to the workers of a node."""

    def __init__(self, node_id: str, workers: int, secret: str = "") -> None:
        self._node_id, self._workers, self._secret = node_id, workers, secret

    async def ask(
        self, published: Published, devices: list[str]
    ) -> AsyncGenerator[learner_service_pb2.HandOverResponse, None]:
        """Where the workers, which see these accelerators, are to come; then that all was sent. Raises BanyanError."""
        channel = rpc.channel(published.address, secret=self._secret)
        try:
            stub = learner_service_pb2_grpc.LearnerServiceStub(channel)
            request = learner_service_pb2.HandOverRequest(
                digest=published.policy.digest,
                node_id=self._node_id,
                workers=self._workers,
                devices=devices,
            )
            async for said in stub.HandOver(
                request, timeout=_FETCH_S + published.bytes / SLOWEST_B_S
            ):
                yield said
        except grpc.RpcError as error:
            raise error_of(error, f"a hand-over of weights from {published.address}") from None
        finally:
            await channel.close(None)
