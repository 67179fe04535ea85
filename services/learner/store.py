"""The store over gRPC. A store that restarts is waited for; every call has a deadline."""

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
from services.learner.data.replay import Replayed, ReplayRequest
from services.learner.data.selection import Ready
from services.learner.ports import StoredBatch

USE = "train"
PATIENCE_S = 120.0
_TREES_AT_ONCE = 256
_STREAM_DEADLINE_S = 120.0


class GrpcStore:
    """Implements ports.Store for one run."""

    def __init__(self, channel: grpc.aio.Channel, run_id: str, patience_s: float = PATIENCE_S) -> None:
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
        request = treestore_service_pb2.ReadyGroupsRequest(run_id=self._run_id, use=USE, limit=limit)
        answer = await self._call(self._trees.ReadyGroups, request)
        groups = [Ready(g.group_id, g.ordinal, tuple(g.tree_ids)) for g in answer.groups]
        return groups, answer.oldest_open if answer.HasField("oldest_open") else None

    async def trees(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        found: dict[bytes, tree_pb2.Tree] = {}
        for start in range(0, len(tree_ids), _TREES_AT_ONCE):
            for tree in await self._stream(tree_ids[start : start + _TREES_AT_ONCE]):
                found[tree.spec.tree_id] = tree
        missing = [t.hex()[:12] for t in tree_ids if t not in found]
        if missing:
            raise NotFound(f"the store does not hold {len(missing)} trees of run {self._run_id}, such as {missing[0]}")
        return [found[t] for t in tree_ids]

    async def _stream(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        wanted = treestore_service_pb2.TreeFilter(run_id=self._run_id, tree_ids=tree_ids, limit=len(tree_ids))
        request = treestore_service_pb2.StreamTreesRequest(filter=wanted)
        end = time.monotonic() + self._patience_s
        while True:
            try:
                return [answer.tree async for answer in self._trees.StreamTrees(request, timeout=_STREAM_DEADLINE_S)]
            except grpc.RpcError as error:
                meant = error_of(error, "StreamTrees")
                if meant.reason != Reason.UNAVAILABLE or time.monotonic() > end:
                    raise meant from None
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
            failed=[treestore_service_pb2.FailedGroup(group_id=g, row_digest=row) for g, row in wanted.failed],
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
            replayed=[_to_wire(one) for one in replayed],
        )
        await self._call(self._trees.CommitBatch, request)

    async def batch(self, ordinal: int) -> StoredBatch | None:
        request = treestore_service_pb2.ReadBatchRequest(run_id=self._run_id, ordinal=ordinal)
        answer = await self._call(self._trees.ReadBatch, request)
        if not answer.HasField("batch"):
            return None
        batch = answer.batch
        summary = json.loads(batch.summary_json) if batch.summary_json else {}
        again = _replayed(batch.replayed)
        return StoredBatch(batch.ordinal, tuple(batch.group_ids), tuple(batch.tree_ids), summary, again, batch.set_aside)

    async def note_failure(self, ordinal: int, epoch: int, cause: str) -> int:
        request = treestore_service_pb2.NoteFailureRequest(
            run_id=self._run_id, ordinal=ordinal, learner_epoch=epoch, cause=cause
        )
        answer: treestore_service_pb2.NoteFailureResponse = await self._call(self._trees.NoteFailure, request)
        return answer.failures

    async def policies(self) -> list[runstore_service_pb2.StoredPolicy]:
        all_of_them: list[runstore_service_pb2.StoredPolicy] = []
        request = runstore_service_pb2.ReadPoliciesRequest(run_id=self._run_id, abandoned=True)
        while found := list((await self._call(self._runs.ReadPolicies, request)).policies):
            all_of_them += found
            request.after = found[-1].number
        return all_of_them

    async def evaluations(self) -> tuple[int, list[runstore_service_pb2.EvalProgress]]:
        """The newest step, and how the run's evaluations stand."""
        request = runstore_service_pb2.ReadProgressRequest(run_id=self._run_id)
        answer = await rpc.call(self._runs.ReadProgress, request, deadline_s=5.0)
        return answer.step, list(answer.evals)

    async def put_policy(self, policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        await self._call(self._runs.PutPolicy, runstore_service_pb2.PutPolicyRequest(policy=policy, replayed=replayed))


def _replayed(trees: Iterable[treestore_service_pb2.ReplayedTree]) -> tuple[Replayed, ...]:
    return tuple(Replayed(t.tree_id, t.group_id, leaf_from_wire(t.leaf) if t.HasField("leaf") else None) for t in trees)


def _to_wire(one: Replayed) -> treestore_service_pb2.ReplayedTree:
    leaf = None if one.leaf is None else leaf_to_wire(one.leaf)
    return treestore_service_pb2.ReplayedTree(tree_id=one.tree_id, group_id=one.group_id, leaf=leaf)
