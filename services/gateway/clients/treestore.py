"""`ports.Store` over gRPC. It holds the gateway's epoch, which goes with every write."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.rpc import rpc
from services.gateway.domain.state_machine import State

PATIENCE_S = 20.0  # for a store that restarts: longer than its start, shorter than a user waits
_TROUBLES = 4
_ENDED = [tree_pb2.TREE_STATE_DROPPED, tree_pb2.TREE_STATE_CLOSED, tree_pb2.TREE_STATE_CONSUMED]


class RpcStore:
    """`ports.Store` on a channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._runs: Any = RunStoreServiceStub(channel)
        self._trees: Any = TreeStoreServiceStub(channel)
        self.epoch = 0

    async def take_epoch(self, gateway_id: str) -> int:
        answer = await self._call(
            self._runs.TakeGatewayEpoch, runs.TakeGatewayEpochRequest(gateway_id=gateway_id)
        )
        self.epoch = int(answer.epoch)
        return self.epoch

    async def put_run(self, run: runs.Run, request_id: str, tokenizer: bytes = b"") -> runs.Run:
        request = runs.PutRunRequest(
            run=run, request_id=request_id, gateway_epoch=self.epoch, tokenizer=tokenizer
        )
        return _run(await self._call(self._runs.PutRun, request))

    async def read_run(self, run_id: str, with_progress: bool = False) -> runs.ReadRunResponse:
        answer: runs.ReadRunResponse = await self._call(
            self._runs.ReadRun, runs.ReadRunRequest(run_id=run_id, with_progress=with_progress)
        )
        if with_progress and not answer.HasField("progress"):  # a store of an older version
            answer.progress.CopyFrom(await self._read_progress(answer.run.run_id))
        return answer

    async def read_runs(self, live_only: bool) -> Sequence[runs.Run]:
        answer = await self._call(self._runs.ReadRuns, runs.ReadRunsRequest(live_only=live_only))
        return list(answer.runs)

    async def move_run(self, run_id: str, old: State, new: State, cause: str) -> runs.Run:
        request = runs.MoveRunRequest(
            run_id=run_id, from_state=old, to_state=new, cause=cause, gateway_epoch=self.epoch
        )
        return _run(await self._call(self._runs.MoveRun, request))

    async def _read_progress(self, run_id: str) -> runs.ReadProgressResponse:
        request = runs.ReadProgressRequest(run_id=run_id)
        answer: runs.ReadProgressResponse = await self._call(self._runs.ReadProgress, request)
        return answer

    async def read_rooms(
        self, run_id: str, block: int, known: int, wait_s: float
    ) -> runs.ReadRoomsResponse:
        request = runs.ReadRoomsRequest(
            run_id=run_id, block=block, known=known, deadline_ms=round(1000 * wait_s)
        )
        answer: runs.ReadRoomsResponse = await rpc.call(
            self._runs.ReadRooms, request, deadline_s=wait_s + 10.0, patience_s=PATIENCE_S
        )
        return answer

    async def grant_rooms(self, run_id: str, grants: Sequence[runs.RoomGrant]) -> None:
        request = runs.GrantRoomsRequest(run_id=run_id, gateway_epoch=self.epoch, grants=grants)
        await self._call(self._runs.GrantRooms, request)

    async def put_allocations(
        self, run_id: str, allocations: Sequence[runs.GroupAllocation]
    ) -> Sequence[runs.GroupAllocation]:
        request = runs.PutAllocationsRequest(
            run_id=run_id, gateway_epoch=self.epoch, allocations=allocations
        )
        return list((await self._call(self._runs.PutAllocations, request)).allocations)

    async def read_allocations(self, run_id: str, first: int) -> Sequence[runs.GroupAllocation]:
        request = runs.ReadAllocationsRequest(run_id=run_id, first=first)
        return list((await self._call(self._runs.ReadAllocations, request)).allocations)

    async def read_outcomes(
        self, run_id: str, first: int, before: int, solved_chars: int = 0, right: float = 0.5
    ) -> runs.ReadOutcomesResponse:
        request = runs.ReadOutcomesRequest(
            run_id=run_id,
            first_batch=first,
            before_batch=before,
            solved_chars=solved_chars,
            right=right,
        )
        answer: runs.ReadOutcomesResponse = await self._call(self._runs.ReadOutcomes, request)
        return answer

    async def set_desired(self, run_id: str, processes: Mapping[str, int]) -> None:
        wanted = [
            runs.DesiredProcess(run_id=run_id, service=s, count=n)
            for s, n in sorted(processes.items())
        ]
        request = runs.SetDesiredRequest(run_id=run_id, processes=wanted, gateway_epoch=self.epoch)
        await self._call(self._runs.SetDesired, request)

    async def read_desired(self) -> Sequence[runs.DesiredProcess]:
        answer = await self._call(
            self._runs.WatchDesired, runs.WatchDesiredRequest(revision=0, deadline_ms=1)
        )
        return list(answer.processes)

    async def read_policies(
        self, run_id: str, after: int = 0, newest: int = 0
    ) -> Sequence[runs.StoredPolicy]:
        request = runs.ReadPoliciesRequest(run_id=run_id, after=after, newest=newest)
        answer = await self._call(self._runs.ReadPolicies, request)
        return list(answer.policies)

    async def read_members(self, run_id: str) -> Sequence[runs.Member]:
        answer = await self._call(self._runs.ReadMembers, runs.ReadMembersRequest(run_id=run_id))
        return list(answer.members)

    async def put_member(self, member: runs.Member) -> None:
        await self._call(self._runs.PutMember, runs.PutMemberRequest(member=member))

    async def put_token(self, token_hash: bytes, run_id: str, valid_s: int) -> None:
        request = runs.PutTokenRequest(
            token_hash=token_hash, run_id=run_id, valid_s=valid_s, gateway_epoch=self.epoch
        )
        await self._call(self._runs.PutToken, request)

    async def read_token(self, token_hash: bytes) -> str:
        answer = await self._call(
            self._runs.ReadToken, runs.ReadTokenRequest(token_hash=token_hash)
        )
        return str(answer.run_id)

    async def last_training_tree(self, run_id: str) -> tree_pb2.TreeSpec | None:
        newest = lineage.TreeFilter(run_id=run_id, purpose=tree_pb2.TREE_PURPOSE_TRAIN, limit=1)
        listed = await self._call(self._trees.ListTrees, lineage.ListTreesRequest(filter=newest))
        for summary in listed.trees:
            answer = await self._call(
                self._trees.GetTree, lineage.GetTreeRequest(tree_id=summary.tree_id)
            )
            spec: tree_pb2.TreeSpec = answer.tree.spec
            return spec
        return None

    async def troubles(self, run_id: str, label: str) -> list[str]:
        purpose = tree_pb2.TREE_PURPOSE_EVAL if label else tree_pb2.TREE_PURPOSE_TRAIN
        states = [] if label else _ENDED
        newest = lineage.TreeFilter(
            run_id=run_id, purpose=purpose, label=label, states=states, limit=_TROUBLES
        )
        listed = await self._call(self._trees.ListTrees, lineage.ListTreesRequest(filter=newest))
        reasons = [f"tree dropped: {tree.reason}" for tree in listed.trees if tree.reason]
        for summary in listed.trees:
            answer = await self._call(
                self._trees.GetTree, lineage.GetTreeRequest(tree_id=summary.tree_id)
            )
            scores = answer.tree.scores
            reasons += [f"{s.scorer}: {s.score.reason}" for s in scores if s.score.reason]
        return list(dict.fromkeys(reasons))

    @staticmethod
    async def _call(method: Any, request: Message) -> Any:
        return await rpc.call(method, request, deadline_s=10.0, patience_s=PATIENCE_S)


def _run(answer: Any) -> runs.Run:
    run: runs.Run = answer.run
    return run
