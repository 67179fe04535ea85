"""TreeStoreService: the lineage over gRPC.

Each call is one transaction of a pure handler. Calls that wait read the database again after
commits.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

import grpc.aio
from sqlalchemy import Connection

from banyan.errors import InvalidInput
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceServicer
from services.chassis.process import telemetry
from services.treestore.api import lineage
from services.treestore.api.callers import run_of
from services.treestore.control import learner_failures
from services.treestore.ingest import blobs
from services.treestore.lifecycle import actions, claim_batch, claims, effects, group_scoring, waits
from services.treestore.queries import export, stats, transcripts, trees
from services.treestore.storage import schema
from services.treestore.training import batches
from services.treestore.training.replay import sampling
from services.treestore.unit_of_work.context import Context

Call = grpc.aio.ServicerContext[Any, Any]
_LONGEST_WAIT_S = 120.0
_MAX_UPLOADS = 4  # blobs at once: they are in memory until they are whole
_STREAM_BATCH = 32  # trees read at once


class TreeStoreService(TreeStoreServiceServicer):
    """Answers of the lineage; changes wake the waiters for them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._database = context.database
        self._uploads = asyncio.Semaphore(_MAX_UPLOADS)

    async def ClaimTree(self, request: ts.ClaimTreeRequest, call: Call) -> ts.ClaimTreeResponse:
        await self._check_run(request.tree_id, call)
        now, settings = self._context.now(), self._context.settings
        claim = await self._context.write(
            lambda c: claim_batch.claim_one(c, request, now, settings), [request.tree_id]
        )
        _count_again([claim])
        return claim

    async def ClaimTrees(self, request: ts.ClaimTreesRequest, call: Call) -> ts.ClaimTreesResponse:
        now, settings, run_id = self._context.now(), self._context.settings, run_of(call)
        keys = [claim.tree_id for claim in request.claims]
        response = await self._context.write(
            lambda c: claim_batch.claim_many(c, request, run_id, now, settings), keys
        )
        _count_again(outcome.claim for outcome in response.outcomes)
        return response

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
        now, settings, run_id = self._context.now(), self._context.settings, run_of(call)
        if len(request.claims) > claim_batch.MAX_CLAIMS:
            raise InvalidInput(
                f"{len(request.claims)} renewals at once;"
                f" at most {claim_batch.MAX_CLAIMS} are taken"
            )
        pairs = [(claim.tree_id, claim.epoch) for claim in request.claims]
        errors = await self._context.write(
            lambda c: claims.renew_all(c, pairs, run_id, now, settings)
        )
        outcomes = [
            ts.RenewOutcome(refused=error.reason, detail=str(error)) if error else ts.RenewOutcome()
            for error in errors
        ]
        return ts.RenewClaimsResponse(deadline_ms=settings.claim_ms, outcomes=outcomes)

    async def StreamClaimed(
        self, request: ts.StreamClaimedRequest, call: Call
    ) -> AsyncIterator[ts.StreamClaimedResponse]:
        run_id = run_of(call)
        for part in await self._database.read(lambda c: claim_batch.parts(c, request, run_id)):
            yield await self._database.read(partial(claim_batch.part, segments=part))

    async def ReturnTree(self, request: ts.ReturnTreeRequest, call: Call) -> ts.ReturnTreeResponse:
        await self._check_run(request.tree_id, call)
        now, settings, joined = self._context.now(), self._context.settings, bool(run_of(call))
        await self._context.write(
            lambda c: claims.return_tree(
                c,
                request.tree_id,
                epoch=request.epoch,
                reason=request.reason,
                now_ms=now,
                settings=settings,
                joined=joined,
            ),
            [request.tree_id],
        )
        kind = telemetry.kind_of(request.reason)
        telemetry.count("banyan.claims.returned", banyan_reason=kind)
        return ts.ReturnTreeResponse()

    async def ReadActions(
        self, request: ts.ReadActionsRequest, call: Call
    ) -> ts.ReadActionsResponse:
        run_id = run_of(call)
        return await self._context.notifier.until(
            {key.tree_id for key in request.actions},
            lambda: self._database.read(
                lambda c: actions.read(c, request, self._context.now(), run_id)
            ),
            actions.has_news,
            _seconds(request.deadline_ms),
        )

    async def BeginEffect(
        self, request: ts.BeginEffectRequest, call: Call
    ) -> ts.BeginEffectResponse:
        await self._check_run(request.tree_id, call)
        now = self._context.now()
        return await self._context.write(lambda c: effects.begin(c, request, now))

    async def EndEffect(self, request: ts.EndEffectRequest, call: Call) -> ts.EndEffectResponse:
        await self._check_run(request.tree_id, call)
        return await self._context.write(lambda c: effects.end(c, request))

    async def AwaitIngested(
        self, request: ts.AwaitIngestedRequest, call: Call
    ) -> ts.AwaitIngestedResponse:
        await self._check_run(request.tree_id, call)
        return await self._context.notifier.until(
            [request.tree_id],
            lambda: self._database.read(lambda c: waits.ingested(c, request)),
            lambda response: waits.is_complete(request, response),
            _seconds(request.deadline_ms),
        )

    async def AwaitTreesIngested(
        self, request: ts.AwaitTreesIngestedRequest, call: Call
    ) -> ts.AwaitTreesIngestedResponse:
        if len(request.trees) > waits.MAX_TREES:
            raise InvalidInput(
                f"{len(request.trees)} trees at once; at most {waits.MAX_TREES} are taken"
            )
        run_id, last = run_of(call), ts.AwaitTreesIngestedResponse()

        async def read() -> ts.AwaitTreesIngestedResponse:
            last.CopyFrom(
                await self._database.read(lambda c: waits.ingested_trees(c, request, run_id, last))
            )
            return last

        return await self._context.notifier.until(
            {tree.tree_id for tree in request.trees},
            read,
            lambda response: waits.all_complete(request, response),
            _seconds(request.deadline_ms),
        )

    async def AwaitScores(
        self, request: ts.AwaitScoresRequest, call: Call
    ) -> ts.AwaitScoresResponse:
        await self._check_run(request.tree_id, call)
        return await self._context.notifier.until(
            [request.tree_id],
            lambda: self._database.read(lambda c: waits.scores(c, request)),
            lambda response: waits.has_news(request, response),
            _seconds(request.deadline_ms),
        )

    async def PutBlob(
        self, requests: AsyncIterator[ts.PutBlobRequest], call: Call
    ) -> ts.PutBlobResponse:
        async with self._uploads:
            now, settings = self._context.now(), self._context.settings
            first, data = await blobs.receive(requests, settings)
            await self._check_run(first.tree_id, call)
            await self._database.write(lambda c: blobs.put(c, first, data, now, settings))
            return ts.PutBlobResponse()

    async def _check_run(self, tree_id: bytes, call: Call) -> None:
        """Raise Refused for a tree of another run than the one that the token of a joined node
        opens.
        """
        run_id = run_of(call)
        if run_id:
            await self._database.read(lambda c: claims.check_run(c, tree_id, run_id))

    async def ReadLeaves(self, request: ts.ReadLeavesRequest, call: Call) -> ts.ReadLeavesResponse:
        keys = list(request.leaves)
        leaves = await self._context.notifier.until(
            list({key.tree_id for key in keys}),
            lambda: self._database.read(lambda c: transcripts.read(c, keys)),
            lambda leaves: len(leaves) == len(keys),
            _seconds(request.deadline_ms),
        )
        return transcripts.answer(keys, leaves)

    async def ReadGroup(self, request: ts.ReadGroupRequest, call: Call) -> ts.ReadGroupResponse:
        return await self._context.notifier.until(
            [request.tree_id],
            lambda: self._database.read(lambda c: group_scoring.read(c, request)),
            lambda group: group.settled,
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
        return await self._context.write(lambda c: learner_failures.record(c, request))

    async def GetTree(self, request: ts.GetTreeRequest, call: Call) -> ts.GetTreeResponse:
        def read(connection: Connection) -> tree_pb2.Tree:
            ids = schema.trees.c.tree_id
            tree_id = trees.find(connection, ids, request.tree_id, "tree")
            [tree] = trees.read(connection, [tree_id], plans=request.plans, rescores=True)
            return tree

        return ts.GetTreeResponse(tree=await self._database.read(read))

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
        async for tree in self._stream(request.filter, rescores=True):
            yield ts.ExportTreesResponse(line=export.line(tree))

    async def _stream(
        self, filters: ts.TreeFilter, *, rescores: bool = False
    ) -> AsyncIterator[tree_pb2.Tree]:
        wanted = await self._database.read(lambda c: trees.ids(c, filters))
        for start in range(0, len(wanted), _STREAM_BATCH):
            part = wanted[start : start + _STREAM_BATCH]
            read = partial(trees.read, tree_ids=part, rescores=rescores)
            for tree in await self._database.read(read):
                for segment in tree.segments:
                    trees.drop_signals(segment)
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


def _count_again(claims: Iterable[ts.ClaimTreeResponse]) -> None:
    """Count claims that are not the first of their trees, by run; 0 makes the first one seen.

    Refused ones have no epoch.
    """
    runs = Counter[str]()
    for claim in claims:
        if claim.epoch:
            runs[claim.tree.spec.run_id] += claim.epoch > 1
    for run_id, many in runs.items():
        telemetry.count("banyan.claims.again", many, banyan_run=run_id)
