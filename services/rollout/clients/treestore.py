"""The tree store over gRPC, for one node of one run."""

import functools
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio

from banyan.digest import blake
from banyan.v1 import (
    runstore_service_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2,
    treestore_service_pb2_grpc,
)
from banyan.wire.status import error_of
from services.chassis.rpc import rpc
from services.rollout.clients.batched_calls import BatchedCalls
from services.rollout.growth import grants, policy_selection, scores
from services.rollout.growth.policy_selection import Published
from services.rollout.ports import Awaited, Claim, Ingested, Load

_CALL_S = 10.0
_PATIENCE_S = 20.0  # a treestore that is started again serves well within this
_STREAM_S = 600.0
_BLOB_S = 60.0
_CHUNK_BYTES = 1 << 20
_POLICIES = 64  # more than are ever wanted: the newest, or one that growing trees require
_INGEST_TURN_MS = 1000  # of one call: a tree that the store lacks does not hold up later ones


class GrpcStore:
    """The calls of one node (`services.rollout.ports.Store`)."""

    def __init__(
        self, channel: grpc.aio.Channel, run_id: str, node_id: str, joined: bool = False
    ) -> None:
        self._trees = treestore_service_pb2_grpc.TreeStoreServiceStub(channel)
        self._runs = runstore_service_pb2_grpc.RunStoreServiceStub(channel)
        self._run_id, self._node_id, self._joined = run_id, node_id, joined
        self._claims = BatchedCalls(self._claim_trees)
        self._renewals = BatchedCalls(self._renew_claims)
        self._ingests = BatchedCalls(self._await_trees_ingested)

    async def run(self) -> runstore_service_pb2.Run:
        """Return the run."""
        request = runstore_service_pb2.ReadRunRequest(run_id=self._run_id)
        response: runstore_service_pb2.ReadRunResponse = await rpc.call(
            self._runs.ReadRun, request, _CALL_S, _PATIENCE_S
        )
        return response.run

    async def policies(self) -> list[Published]:
        """Return the newest policies that are not abandoned, oldest first."""
        request = runstore_service_pb2.ReadPoliciesRequest(run_id=self._run_id, newest=_POLICIES)
        response = await rpc.call(self._runs.ReadPolicies, request, _CALL_S, _PATIENCE_S)
        stored = [policy for policy in response.policies if not policy.abandoned]
        return [policy_selection.from_wire(policy.published) for policy in stored]

    async def claim(self, tree_id: bytes, ticket: int, traceparent: str = "") -> Claim:
        """Claim a tree."""
        request = treestore_service_pb2.ClaimTreeRequest(
            tree_id=tree_id, node_id=self._node_id, ticket=ticket, traceparent=traceparent
        )
        claim = (await self._claims.ask(request)).claim
        if claim.streamed:
            claim.tree.segments.extend(await self._stream_claimed(tree_id, claim.epoch))
        return Claim(claim.epoch, claim.tree, claim.first_traceparent)

    async def renew(self, tree_id: bytes, epoch: int) -> None:
        """Renew a claim."""
        request = treestore_service_pb2.RenewClaimRequest(tree_id=tree_id, epoch=epoch)
        await self._renewals.ask(request)

    async def return_tree(self, tree_id: bytes, epoch: int, reason: str) -> None:
        """End a claim."""
        request = treestore_service_pb2.ReturnTreeRequest(
            tree_id=tree_id, epoch=epoch, reason=reason
        )
        await rpc.call(self._trees.ReturnTree, request, _CALL_S, _CALL_S)

    async def await_ingested(
        self, tree_id: bytes, epoch: int, segments: Sequence[bytes], deadline_s: float
    ) -> Ingested:
        """Wait until the store has a tree, or has lost some of it, or until the deadline."""
        request = treestore_service_pb2.AwaitIngestedRequest(
            tree_id=tree_id,
            epoch=epoch,
            segment_ids=segments,
            grown=True,
            deadline_ms=int(1000 * deadline_s),
        )
        answer = (await self._ingests.ask(request, _settled_by(deadline_s))).answer
        refused = tuple(refusal.reason for refusal in answer.refused)
        return Ingested(frozenset(answer.missing), answer.grown, refused)

    async def await_scores(
        self, tree_id: bytes, epoch: int, known: int, round: int | None, deadline_s: float
    ) -> Awaited:
        """Wait for scores, or a growth budget, of a tree."""
        request = treestore_service_pb2.AwaitScoresRequest(
            tree_id=tree_id,
            epoch=epoch,
            known=known,
            deadline_ms=int(1000 * deadline_s),
            room_known=round,
        )
        answer = await rpc.call(self._trees.AwaitScores, request, deadline_s + _CALL_S, _PATIENCE_S)
        grant = grants.from_wire(answer.room) if answer.HasField("room") else None
        return Awaited(scores.from_wire(answer.scores), grant)

    async def put_blob(self, tree_id: bytes, epoch: int, data: bytes) -> None:
        """Send a segment in chunks."""

        def attempt(_: None, timeout: float, metadata: tuple[tuple[str, str], ...]) -> Any:
            chunks = _chunks(tree_id, epoch, data)
            return self._trees.PutBlob(chunks, timeout=timeout, metadata=metadata)

        await rpc.call(attempt, None, _BLOB_S)

    async def begin(self) -> None:
        """Record that this node has started, before it claims anything.

        The claims that it held when it died end at once (ADR 048).
        """
        request = self._put_member(0, Load(), begins=True)
        await rpc.call(self._runs.PutMember, request, _CALL_S, _PATIENCE_S)

    async def present(self, trees: int, load: Load, leaving: bool = False) -> None:
        """Record that this node is there, or that it leaves."""
        request = self._put_member(trees, load, leaving=leaving)
        await rpc.call(self._runs.PutMember, request, _CALL_S)

    def _put_member(
        self, trees: int, load: Load, **flags: bool
    ) -> runstore_service_pb2.PutMemberRequest:
        member = runstore_service_pb2.Member(
            node_id=self._node_id,
            run_id=self._run_id,
            host=socket.gethostname(),
            joined=self._joined,
            trees=trees,
            decoded=load.decoded,
            decode_slots=load.slots,
            policy_step=load.policy_step,
        )
        return runstore_service_pb2.PutMemberRequest(member=member, **flags)

    async def _stream_claimed(self, tree_id: bytes, epoch: int) -> list[tree_pb2.Segment]:
        """Return the segments of a claimed tree that is too large for one answer."""
        request = treestore_service_pb2.StreamClaimedRequest(tree_id=tree_id, epoch=epoch)
        segments: list[tree_pb2.Segment] = []
        try:
            async for part in self._trees.StreamClaimed(request, timeout=_STREAM_S):
                segments.extend(part.segments)
        except grpc.RpcError as error:
            raise error_of(error, f"the segments of tree {tree_id.hex()[:12]}") from None
        return segments

    async def _claim_trees(
        self, claims: Sequence[treestore_service_pb2.ClaimTreeRequest]
    ) -> Sequence[treestore_service_pb2.ClaimOutcome]:
        request = treestore_service_pb2.ClaimTreesRequest(claims=claims)
        response: treestore_service_pb2.ClaimTreesResponse = await rpc.call(
            self._trees.ClaimTrees, request, _CALL_S, _PATIENCE_S
        )
        return response.outcomes

    async def _renew_claims(
        self, claims: Sequence[treestore_service_pb2.RenewClaimRequest]
    ) -> Sequence[treestore_service_pb2.RenewOutcome]:
        request = treestore_service_pb2.RenewClaimsRequest(claims=claims)
        response: treestore_service_pb2.RenewClaimsResponse = await rpc.call(
            self._trees.RenewClaims, request, _CALL_S
        )
        return response.outcomes

    async def _await_trees_ingested(
        self, trees: Sequence[treestore_service_pb2.AwaitIngestedRequest]
    ) -> Sequence[treestore_service_pb2.IngestOutcome]:
        request = treestore_service_pb2.AwaitTreesIngestedRequest(
            trees=trees, deadline_ms=_INGEST_TURN_MS
        )
        response: treestore_service_pb2.AwaitTreesIngestedResponse = await rpc.call(
            self._trees.AwaitTreesIngested, request, _CALL_S, _PATIENCE_S
        )
        return response.outcomes


def _settled_by(deadline_s: float) -> Callable[[treestore_service_pb2.IngestOutcome], bool]:
    """Return a test of outcomes: whether the wait for a tree is over, at the latest after
    `deadline_s` from now."""
    return functools.partial(_is_settled, time.monotonic() + deadline_s)


def _is_settled(deadline: float, outcome: treestore_service_pb2.IngestOutcome) -> bool:
    answer = outcome.answer
    is_whole = answer.grown and not answer.missing
    return is_whole or bool(answer.refused) or time.monotonic() >= deadline


def _chunks(
    tree_id: bytes, epoch: int, data: bytes
) -> Iterator[treestore_service_pb2.PutBlobRequest]:
    yield treestore_service_pb2.PutBlobRequest(
        tree_id=tree_id, epoch=epoch, digest=blake(data), size=len(data)
    )
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = data[start : start + _CHUNK_BYTES]
        yield treestore_service_pb2.PutBlobRequest(chunk=chunk)
