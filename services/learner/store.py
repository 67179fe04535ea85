"""The treestore over gRPC: calls have a deadline, and wait for a store that restarts."""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from banyan.errors import NotFound
from banyan.reasons import Reason
from banyan.v1 import (
    events_pb2,
    runstore_service_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2,
    treestore_service_pb2_grpc,
)
from banyan.wire.segments import leaf_from_wire, leaf_to_wire
from banyan.wire.status import error_of
from services.chassis.rpc import rpc
from services.learner.data.engine_load import Loads
from services.learner.data.replay import Replayed, ReplayRequest
from services.learner.data.selection import Ready
from services.learner.ports import StoredBatch

USE = "train"
PATIENCE_S = 120.0
_TREES_AT_ONCE = 256
_STREAM_DEADLINE_S = 120.0


class GrpcStore:
    """Implements ports.Store for one run."""

    def __init__(
        self, channel: grpc.aio.Channel, run_id: str, patience_s: float = PATIENCE_S
    ) -> None:
        self._trees: Any = treestore_service_pb2_grpc.TreeStoreServiceStub(channel)
        self._runs: Any = runstore_service_pb2_grpc.RunStoreServiceStub(channel)
        self._run_id, self._patience_s = run_id, patience_s

    async def _call(self, method: Any, request: Any) -> Any:
        return await rpc.call(method, request, deadline_s=30.0, patience_s=self._patience_s)

    async def run(self) -> runstore_service_pb2.Run:
        request = runstore_service_pb2.ReadRunRequest(run_id=self._run_id)
        run: runstore_service_pb2.Run = (await self._call(self._runs.ReadRun, request)).run
        return run

    async def take_epoch(self, learner_id: str, checkpoint_step: int) -> tuple[int, int]:
        request = runstore_service_pb2.TakeLearnerEpochRequest(
            run_id=self._run_id, learner_id=learner_id, checkpoint_step=checkpoint_step
        )
        answer = await self._call(self._runs.TakeLearnerEpoch, request)
        return answer.epoch, answer.next_ordinal

    async def ready(self, limit: int) -> tuple[list[Ready], int | None]:
        request = treestore_service_pb2.ReadyGroupsRequest(
            run_id=self._run_id, use=USE, limit=limit
        )
        answer = await self._call(self._trees.ReadyGroups, request)
        groups = [
            Ready(group.group_id, group.ordinal, tuple(group.tree_ids)) for group in answer.groups
        ]
        return groups, answer.oldest_open if answer.HasField("oldest_open") else None

    async def trees(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        by_id: dict[bytes, tree_pb2.Tree] = {}
        for start in range(0, len(tree_ids), _TREES_AT_ONCE):
            for tree in await self._stream(tree_ids[start : start + _TREES_AT_ONCE]):
                by_id[tree.spec.tree_id] = tree
        missing = [tree_id.hex()[:12] for tree_id in tree_ids if tree_id not in by_id]
        if missing:
            raise NotFound(
                f"the store does not hold {len(missing)} trees of run {self._run_id},"
                f" such as {missing[0]}"
            )
        return [by_id[tree_id] for tree_id in tree_ids]

    async def _stream(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        wanted = treestore_service_pb2.TreeFilter(
            run_id=self._run_id, tree_ids=tree_ids, limit=len(tree_ids)
        )
        request = treestore_service_pb2.StreamTreesRequest(filter=wanted)
        end = time.monotonic() + self._patience_s
        while True:
            try:
                answers = self._trees.StreamTrees(request, timeout=_STREAM_DEADLINE_S)
                return [answer.tree async for answer in answers]
            except grpc.RpcError as error:
                meaning = error_of(error, "StreamTrees")
                if meaning.reason != Reason.UNAVAILABLE or time.monotonic() > end:
                    raise meaning from None
            await asyncio.sleep(0.25)

    async def replays(self, wanted: ReplayRequest) -> tuple[Replayed, ...]:
        replay = wanted.replay
        request = treestore_service_pb2.SampleReplayRequest(
            run_id=self._run_id,
            count=wanted.groups,
            seed=wanted.seed,
            policy=replay.policy,
            settings_json=json.dumps(replay.settings),
            before_batch=wanted.batch,
            first_batch=wanted.first_batch,
            capacity=replay.capacity,
            failed=[
                treestore_service_pb2.FailedGroup(group_id=group_id, row_digest=row_digest)
                for group_id, row_digest in wanted.failed
            ],
            right=replay.right,
        )
        return _replayed((await self._call(self._trees.SampleReplay, request)).trees)

    async def commit(
        self,
        ordinal: int,
        epoch: int,
        group_ids: Sequence[str],
        summary: Mapping[str, Any],
        replayed: Sequence[Replayed] = (),
    ) -> None:
        request = treestore_service_pb2.CommitBatchRequest(
            run_id=self._run_id,
            ordinal=ordinal,
            learner_epoch=epoch,
            use=USE,
            group_ids=group_ids,
            summary_json=json.dumps(summary, sort_keys=True),
            replayed=[_to_wire(tree) for tree in replayed],
        )
        await self._call(self._trees.CommitBatch, request)

    async def batch(self, ordinal: int) -> StoredBatch | None:
        request = treestore_service_pb2.ReadBatchRequest(run_id=self._run_id, ordinal=ordinal)
        answer = await self._call(self._trees.ReadBatch, request)
        if not answer.HasField("batch"):
            return None
        batch = answer.batch
        return StoredBatch(
            ordinal=batch.ordinal,
            group_ids=tuple(batch.group_ids),
            tree_ids=tuple(batch.tree_ids),
            summary=json.loads(batch.summary_json) if batch.summary_json else {},
            replayed=_replayed(batch.replayed),
            set_aside=batch.set_aside,
        )

    async def note_failure(self, ordinal: int, epoch: int, cause: str) -> int:
        request = treestore_service_pb2.NoteFailureRequest(
            run_id=self._run_id, ordinal=ordinal, learner_epoch=epoch, cause=cause
        )
        answer: treestore_service_pb2.NoteFailureResponse
        answer = await self._call(self._trees.NoteFailure, request)
        return answer.failures

    async def policies(self) -> list[runstore_service_pb2.StoredPolicy]:
        policies: list[runstore_service_pb2.StoredPolicy] = []
        request = runstore_service_pb2.ReadPoliciesRequest(run_id=self._run_id, abandoned=True)
        while page := list((await self._call(self._runs.ReadPolicies, request)).policies):
            policies += page
            request.after = page[-1].number
        return policies

    async def evaluations(self) -> tuple[int, list[runstore_service_pb2.EvalProgress]]:
        """Return the newest step, and the progress of the run's evaluations."""
        request = runstore_service_pb2.ReadProgressRequest(run_id=self._run_id)
        answer = await rpc.call(self._runs.ReadProgress, request, deadline_s=5.0)
        return answer.step, list(answer.evals)

    async def engine_loads(self) -> Loads:
        request = runstore_service_pb2.ReadMembersRequest(run_id=self._run_id)
        answer: runstore_service_pb2.ReadMembersResponse
        answer = await self._call(self._runs.ReadMembers, request)
        return {node.node_id: (node.decoded, node.decode_slots) for node in answer.members}

    async def tokenizer(self) -> bytes:
        """Return the tokenizer.json of the run's model; empty without one."""
        request = runstore_service_pb2.ReadTokenizerRequest(run_id=self._run_id)
        answer: runstore_service_pb2.ReadTokenizerResponse
        answer = await self._call(self._runs.ReadTokenizer, request)
        return answer.tokenizer

    async def put_policy(self, policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        request = runstore_service_pb2.PutPolicyRequest(policy=policy, replayed=replayed)
        await self._call(self._runs.PutPolicy, request)


def _replayed(trees: Iterable[treestore_service_pb2.ReplayedTree]) -> tuple[Replayed, ...]:
    return tuple(
        Replayed(
            tree_id=tree.tree_id,
            group_id=tree.group_id,
            leaf=leaf_from_wire(tree.leaf) if tree.HasField("leaf") else None,
        )
        for tree in trees
    )


def _to_wire(tree: Replayed) -> treestore_service_pb2.ReplayedTree:
    leaf = None if tree.leaf is None else leaf_to_wire(tree.leaf)
    return treestore_service_pb2.ReplayedTree(
        tree_id=tree.tree_id, group_id=tree.group_id, leaf=leaf
    )
