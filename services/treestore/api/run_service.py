"""RunStoreService: the rows of the control plane over gRPC."""

import contextlib
import logging
from typing import Any

import grpc.aio
from sqlalchemy import Connection

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceServicer
from services.treestore.api.callers import run_of
from services.treestore.control import (
    allocations,
    arrivals,
    dead_letters,
    growth_budgets,
    members,
    processes,
    progress,
    removal,
    rescores,
    runs,
)
from services.treestore.queries import group_outcomes, rescore_comparison
from services.treestore.queries import rescores as rescore_queries
from services.treestore.training import policies
from services.treestore.unit_of_work.context import DESIRED, Context
from services.treestore.unit_of_work.rows import OVER

Call = grpc.aio.ServicerContext[Any, Any]
_LONGEST_WAIT_S = 120.0
log = logging.getLogger(__name__)


class RunStoreService(RunStoreServiceServicer):
    """Answers of the control plane; each changes or reads the database in a transaction."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._database = context.database
        self._began_ms = context.now()

    async def TakeGatewayEpoch(
        self, request: rs.TakeGatewayEpochRequest, call: Call
    ) -> rs.TakeGatewayEpochResponse:
        return rs.TakeGatewayEpochResponse(epoch=await self._context.write(runs.take_gateway_epoch))

    async def TakeLearnerEpoch(
        self, request: rs.TakeLearnerEpochRequest, call: Call
    ) -> rs.TakeLearnerEpochResponse:
        return await self._context.write(lambda c: policies.take_epoch(c, request))

    async def PutRun(self, request: rs.PutRunRequest, call: Call) -> rs.PutRunResponse:
        now, settings = self._context.now(), self._context.settings
        return rs.PutRunResponse(
            run=await self._context.write(lambda c: runs.put(c, request, now, settings))
        )

    async def ReadRun(self, request: rs.ReadRunRequest, call: Call) -> rs.ReadRunResponse:
        now, joined = self._context.now(), bool(run_of(call))

        def read(connection: Connection) -> rs.ReadRunResponse:
            answer = runs.read(connection, request.run_id, now)
            if request.with_progress and not joined:
                answer.progress.CopyFrom(progress.read(connection, answer.run.run_id, now))
            return answer

        answer = await self._database.read(read)
        if joined:
            answer.run.ClearField("cause")  # it may quote a row
        return answer

    async def ReadRuns(self, request: rs.ReadRunsRequest, call: Call) -> rs.ReadRunsResponse:
        now = self._context.now()
        return await self._database.read(lambda c: runs.read_all(c, request, now))

    async def ReadTokenizer(
        self, request: rs.ReadTokenizerRequest, call: Call
    ) -> rs.ReadTokenizerResponse:
        return rs.ReadTokenizerResponse(
            tokenizer=await self._database.read(lambda c: runs.tokenizer(c, request.run_id))
        )

    async def MoveRun(self, request: rs.MoveRunRequest, call: Call) -> rs.MoveRunResponse:
        resumed = request.from_state in OVER  # not while the rest of the run is removed
        async with self._context.clearing if resumed else contextlib.nullcontext():
            now, settings = self._context.now(), self._context.settings
            return rs.MoveRunResponse(
                run=await self._context.write(lambda c: runs.move(c, request, now, settings))
            )

    async def RemoveRun(self, request: rs.RemoveRunRequest, call: Call) -> rs.RemoveRunResponse:
        run_id = await self._context.write(lambda c: removal.begin(c, request.run_id, request.keep))
        # Before the rows: an event that came after them would wait for them.
        await self._context.forget(run_id)
        if request.begin:
            return rs.RemoveRunResponse()
        done, rows = await self._context.write(lambda c: removal.step(c, run_id, request.keep))
        return rs.RemoveRunResponse(done=done, rows=rows)

    async def ReadProgress(
        self, request: rs.ReadProgressRequest, call: Call
    ) -> rs.ReadProgressResponse:
        return await self._database.read(
            lambda c: progress.read(c, request.run_id, self._context.now())
        )

    async def ReadRooms(self, request: rs.ReadRoomsRequest, call: Call) -> rs.ReadRoomsResponse:
        revision = await self._context.notifier.until(
            [request.run_id],
            lambda: self._database.read(lambda c: growth_budgets.revision(c, request.run_id)),
            lambda revision: revision != request.known,
            min(request.deadline_ms / 1000, _LONGEST_WAIT_S),
        )
        response = rs.ReadRoomsResponse(seen=revision)
        if request.block:
            now, began = self._context.now(), self._began_ms
            trees = await self._database.read(
                lambda c: growth_budgets.facts(c, request, now, began)
            )
            response.trees.extend(trees)
        return response

    async def GrantRooms(self, request: rs.GrantRoomsRequest, call: Call) -> rs.GrantRoomsResponse:
        now = self._context.now()
        granted = await self._context.write(
            lambda c: growth_budgets.grant(c, request, now),
            [grant.tree_id for grant in request.grants],
        )
        return rs.GrantRoomsResponse(granted=len(granted))

    async def PutAllocations(
        self, request: rs.PutAllocationsRequest, call: Call
    ) -> rs.PutAllocationsResponse:
        now = self._context.now()
        return await self._context.write(lambda c: allocations.put(c, request, now))

    async def ReadAllocations(
        self, request: rs.ReadAllocationsRequest, call: Call
    ) -> rs.ReadAllocationsResponse:
        return await self._database.read(lambda c: allocations.read(c, request))

    async def ReadOutcomes(
        self, request: rs.ReadOutcomesRequest, call: Call
    ) -> rs.ReadOutcomesResponse:
        return await self._database.read(lambda c: group_outcomes.read(c, request))

    async def SetDesired(self, request: rs.SetDesiredRequest, call: Call) -> rs.SetDesiredResponse:
        await self._context.write(lambda c: processes.set_desired(c, request), [DESIRED])
        return rs.SetDesiredResponse()

    async def WatchDesired(
        self, request: rs.WatchDesiredRequest, call: Call
    ) -> rs.WatchDesiredResponse:
        return await self._context.notifier.until(
            [DESIRED],
            lambda: self._database.read(processes.desired),
            lambda wanted: wanted.revision > request.revision,
            min(request.deadline_ms / 1000, _LONGEST_WAIT_S),
        )

    async def ReportProcess(
        self, request: rs.ReportProcessRequest, call: Call
    ) -> rs.ReportProcessResponse:
        now = self._context.now()
        await self._context.write(lambda c: processes.report(c, request, now))
        return rs.ReportProcessResponse()

    async def ReadPolicies(
        self, request: rs.ReadPoliciesRequest, call: Call
    ) -> rs.ReadPoliciesResponse:
        return await self._database.read(lambda c: policies.read(c, request))

    async def PutPolicy(self, request: rs.PutPolicyRequest, call: Call) -> rs.PutPolicyResponse:
        now, settings = self._context.now(), self._context.settings
        await self._context.write(lambda c: policies.put(c, request, now, settings))
        return rs.PutPolicyResponse()

    async def PutToken(self, request: rs.PutTokenRequest, call: Call) -> rs.PutTokenResponse:
        now = self._context.now()
        await self._context.write(lambda c: members.put_token(c, request, now))
        return rs.PutTokenResponse()

    async def ReadToken(self, request: rs.ReadTokenRequest, call: Call) -> rs.ReadTokenResponse:
        now = self._context.now()
        return rs.ReadTokenResponse(
            run_id=await self._database.read(
                lambda c: members.read_token(c, request.token_hash, now)
            )
        )

    async def PutMember(self, request: rs.PutMemberRequest, call: Call) -> rs.PutMemberResponse:
        now, settings, member = self._context.now(), self._context.settings, request.member

        trees = await self._context.write(
            lambda c: arrivals.record_member(c, request, now, settings)
        )
        if trees:
            log.info(
                "node %s of run %s begins; %d trees that it held are queued again",
                member.node_id,
                member.run_id,
                trees,
            )
        return rs.PutMemberResponse()

    async def ReadMembers(
        self, request: rs.ReadMembersRequest, call: Call
    ) -> rs.ReadMembersResponse:
        now = self._context.now()
        return await self._database.read(lambda c: members.read(c, request.run_id, now))

    async def ReadDead(self, request: rs.ReadDeadRequest, call: Call) -> rs.ReadDeadResponse:
        return await self._database.read(lambda c: dead_letters.read(c, request))

    async def ReplayDead(self, request: rs.ReplayDeadRequest, call: Call) -> rs.ReplayDeadResponse:
        await self._context.write(lambda c: dead_letters.replay(c, request.id))
        return rs.ReplayDeadResponse()

    async def ReadLeavesToRescore(
        self, request: rs.ReadLeavesToRescoreRequest, call: Call
    ) -> rs.ReadLeavesToRescoreResponse:
        return await self._database.read(lambda c: rescore_queries.leaves(c, request))

    async def PutRescores(
        self, request: rs.PutRescoresRequest, call: Call
    ) -> rs.PutRescoresResponse:
        now = self._context.now()
        return await self._context.write(lambda c: rescores.put(c, request, now))

    async def CompareRescores(
        self, request: rs.CompareRescoresRequest, call: Call
    ) -> rs.CompareRescoresResponse:
        return await self._database.read(lambda c: rescore_comparison.compare(c, request))
