"""TreeStoreService: lineage over gRPC. Each call is one transaction of a pure handler; waits look again after commits."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from banyan.errors import InvalidInput
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceServicer
from services.chassis.rpc.rpc import RUN_KEY
from services.treestore.api import lineage
from services.treestore.control import learner_failures
from services.treestore.ingest import blobs
from services.treestore.lifecycle import claim_batch, claims, group_scoring, waits
from services.treestore.queries import export, stats, transcripts, trees
from services.treestore.storage import schema as tables
from services.treestore.training import batches
from services.treestore.training.replay import sampling
from services.treestore.unit_of_work.context import Context

Call = grpc.aio.ServicerContext[Any, Any]
_LONGEST_WAIT_S = 120.0
_UPLOADS = 4  # blobs taken at once: they are in memory until they are whole
_STREAMED = 32  # trees read at once


class Lineage(TreeStoreServiceServicer):
    """Answers out of the database; what it changes wakes whoever waits for it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._database = context.database
        self._uploads = asyncio.Semaphore(_UPLOADS)

    async def ClaimTree(self, request: ts.ClaimTreeRequest, call: Call) -> ts.ClaimTreeResponse:
        await self._check_run(request.tree_id, call)
        now, settings = self._context.now(), self._context.settings
        return await self._context.write(
            lambda c: claim_batch.one(c, request, now, settings), [request.tree_id]
        )

    async def ClaimTrees(self, request: ts.ClaimTreesRequest, call: Call) -> ts.ClaimTreesResponse:
        now, settings, run_id = self._context.now(), self._context.settings, _run_of(call)
        keys = [claim.tree_id for claim in request.claims]
        return await self._context.write(
            lambda c: claim_batch.several(c, request, run_id, now, settings), keys
        )

    async def RenewClaim(self, request: ts.RenewClaimRequest, call: Call) -> ts.RenewClaimResponse:
        await self._check_run(request.tree_id, call)
        now, settings = self._context.now(), self._context.settings
        await self._context.write(
            lambda c: claims.renew(c, request.tree_id, request.epoch, now, settings)
        )
        return ts.RenewClaimResponse(deadline_ms=settings.claim_ms)

    async def RenewClaims(
        self, request: ts.RenewClaimsRequest, call: Call
    ) -> ts.RenewClaimsResponse:
        now, settings, run_id = self._context.now(), self._context.settings, _run_of(call)
        if len(request.claims) > claim_batch.MOST:
            raise InvalidInput(
                f"{len(request.claims)} renewals at once; at most {claim_batch.MOST} are taken"
            )
        held = [(claim.tree_id, claim.epoch) for claim in request.claims]
        found = await self._context.write(
            lambda c: claims.renew_all(c, held, run_id, now, settings)
        )
        outcomes = [
            ts.RenewOutcome(refused=e.reason, detail=str(e)) if e else ts.RenewOutcome()
            for e in found
        ]
        return ts.RenewClaimsResponse(deadline_ms=settings.claim_ms, outcomes=outcomes)

    async def StreamClaimed(
        self, request: ts.StreamClaimedRequest, call: Call
    ) -> AsyncIterator[ts.StreamClaimedResponse]:
        run_id = _run_of(call)
        for part in await self._database.read(lambda c: claim_batch.parts(c, request, run_id)):
            yield await self._database.read(lambda c, part=part: claim_batch.part(c, part))  # type: ignore[misc]

    async def ReturnTree(self, request: ts.ReturnTreeRequest, call: Call) -> ts.ReturnTreeResponse:
        await self._check_run(request.tree_id, call)
        now, settings, joined = self._context.now(), self._context.settings, bool(_run_of(call))
        await self._context.write(
            lambda c: claims.hand_back(
                c, request.tree_id, request.epoch, request.reason, now, settings, joined=joined
            ),
            [request.tree_id],
        )
        return ts.ReturnTreeResponse()

    async def AwaitIngested(
        self, request: ts.AwaitIngestedRequest, call: Call
    ) -> ts.AwaitIngestedResponse:
        await self._check_run(request.tree_id, call)
        return await self._context.notifier.until(
            [request.tree_id],
            lambda: self._database.read(lambda c: waits.look(c, request)),
            lambda response: waits.enough(request, response),
            _seconds(request.deadline_ms),
        )

    async def AwaitTreesIngested(
        self, request: ts.AwaitTreesIngestedRequest, call: Call
    ) -> ts.AwaitTreesIngestedResponse:
        if len(request.trees) > waits.MOST:
            raise InvalidInput(
                f"{len(request.trees)} trees at once; at most {waits.MOST} are taken"
            )
        run_id, seen = _run_of(call), ts.AwaitTreesIngestedResponse()

        async def look() -> ts.AwaitTreesIngestedResponse:
            seen.CopyFrom(
                await self._database.read(lambda c: waits.several(c, request, run_id, seen))
            )
            return seen

        return await self._context.notifier.until(
            {one.tree_id for one in request.trees},
            look,
            lambda response: waits.all_enough(request, response),
            _seconds(request.deadline_ms),
        )

    async def AwaitScores(
        self, request: ts.AwaitScoresRequest, call: Call
    ) -> ts.AwaitScoresResponse:
        await self._check_run(request.tree_id, call)
        found = await self._context.notifier.until(
            [request.tree_id],
            lambda: self._database.read(lambda c: waits.scores(c, request)),
            lambda found: waits.news(request, found),
            _seconds(request.deadline_ms),
        )
        return found

    async def PutBlob(
        self, requests: AsyncIterator[ts.PutBlobRequest], call: Call
    ) -> ts.PutBlobResponse:
        async with self._uploads:
            now, settings = self._context.now(), self._context.settings
            head, data = await blobs.received(requests, settings)
            await self._check_run(head.tree_id, call)
            await self._database.write(lambda c: blobs.put(c, head, data, now, settings))
            return ts.PutBlobResponse()

    async def _check_run(self, tree_id: bytes, call: Call) -> None:
        """Calls of joined nodes carry the run that their token opens; a tree of any other run is not theirs."""
        run_id = _run_of(call)
        if run_id:
            await self._database.read(lambda c: claims.check_run(c, tree_id, run_id))

    async def ReadLeaves(self, request: ts.ReadLeavesRequest, call: Call) -> ts.ReadLeavesResponse:
        keys = list(request.leaves)
        found = await self._context.notifier.until(
            list({key.tree_id for key in keys}),
            lambda: self._database.read(lambda c: transcripts.read(c, keys)),
            lambda found: len(found) == len(keys),
            _seconds(request.deadline_ms),
        )
        return ts.ReadLeavesResponse(transcripts=found)

    async def ReadGroup(self, request: ts.ReadGroupRequest, call: Call) -> ts.ReadGroupResponse:
        return await self._context.notifier.until(
            [request.tree_id],
            lambda: self._database.read(lambda c: group_scoring.read(c, request)),
            lambda found: found.settled,
            _seconds(request.deadline_ms),
        )

    async def ReadyGroups(
        self, request: ts.ReadyGroupsRequest, call: Call
    ) -> ts.ReadyGroupsResponse:
        return await self._database.read(lambda c: batches.ready(c, request))

    async def CommitBatch(
        self, request: ts.CommitBatchRequest, call: Call
    ) -> ts.CommitBatchResponse:
        now, settings = self._context.now(), self._context.settings
        await self._context.write(lambda c: batches.commit(c, request, now, settings))
        return ts.CommitBatchResponse()

    async def ReadBatch(self, request: ts.ReadBatchRequest, call: Call) -> ts.ReadBatchResponse:
        return ts.ReadBatchResponse(
            batch=await self._database.read(
                lambda c: batches.read(c, request.run_id, request.ordinal)
            )
        )

    async def NoteFailure(
        self, request: ts.NoteFailureRequest, call: Call
    ) -> ts.NoteFailureResponse:
        return await self._context.write(lambda c: learner_failures.note(c, request))

    async def GetTree(self, request: ts.GetTreeRequest, call: Call) -> ts.GetTreeResponse:
        table = tables.trees
        found = await self._database.read(
            lambda c: trees.read(
                c, [trees.find(c, table, table.c.tree_id, request.tree_id, "tree")], request.plans
            )
        )
        return ts.GetTreeResponse(tree=found[0])

    async def ListTrees(self, request: ts.ListTreesRequest, call: Call) -> ts.ListTreesResponse:
        return await self._database.read(lambda c: trees.summaries(c, request.filter))

    async def StreamTrees(
        self, request: ts.StreamTreesRequest, call: Call
    ) -> AsyncIterator[ts.StreamTreesResponse]:
        async for tree in self._stream(request.filter):
            yield ts.StreamTreesResponse(tree=tree)

    async def ExportTrees(
        self, request: ts.ExportTreesRequest, call: Call
    ) -> AsyncIterator[ts.ExportTreesResponse]:
        async for tree in self._stream(request.filter):
            yield ts.ExportTreesResponse(line=export.line(tree))

    async def _stream(self, filters: ts.TreeFilter) -> AsyncIterator[tree_pb2.Tree]:
        wanted = await self._database.read(lambda c: trees.ids(c, filters))
        for start in range(0, len(wanted), _STREAMED):
            part = wanted[start : start + _STREAMED]
            for tree in await self._database.read(lambda c, part=part: trees.read(c, part)):  # type: ignore[misc]
                for segment in tree.segments:
                    trees.lighten(segment)
                yield tree

    async def GetAncestry(
        self, request: ts.GetAncestryRequest, call: Call
    ) -> ts.GetAncestryResponse:
        return await self._database.read(lambda c: lineage.ancestry(c, request.segment))

    async def ListConsumers(
        self, request: ts.ListConsumersRequest, call: Call
    ) -> ts.ListConsumersResponse:
        return await self._database.read(lambda c: lineage.consumers(c, request.segment))

    async def SampleReplay(
        self, request: ts.SampleReplayRequest, call: Call
    ) -> ts.SampleReplayResponse:
        return await self._database.read(lambda c: sampling.sample(c, request))

    async def GetStats(self, request: ts.GetStatsRequest, call: Call) -> ts.GetStatsResponse:
        return ts.GetStatsResponse(
            counts=await self._database.read(lambda c: stats.read(c, request.run_id))
        )


def _seconds(deadline_ms: int) -> float:
    return min(deadline_ms / 1000, _LONGEST_WAIT_S)


def _run_of(call: Call) -> str:
    """The run that a joined node's token opens; empty for callers of the system itself."""
    return next(
        (str(value) for key, value in call.invocation_metadata() or () if key == RUN_KEY), ""
    )
