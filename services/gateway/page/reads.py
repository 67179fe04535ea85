"""The store as the page reads it, with deadlines of a person's patience; and what is kept of it."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from banyan.errors import NotFound
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from banyan.wire.status import error_of
from services.chassis.rpc import rpc
from services.gateway.page.documents.token_texts import TokenTexts

_DEADLINE_S = 10.0
_PATIENCE_S = 2.0  # for a store that restarts; a page asks again
_TREES_S = 60.0  # for the whole trees of a group
_MOST_TOKENIZERS = 2  # in memory: some 100 MB for the largest


class Reads:
    """Queries of the store. Errors are BanyanErrors with the store's reason."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._runs: Any = RunStoreServiceStub(channel)
        self._trees: Any = TreeStoreServiceStub(channel)
        self._texts: OrderedDict[bytes, TokenTexts] = OrderedDict()

    async def runs(self, limit: int, after: tuple[int, str] | None) -> rs.ReadRunsResponse:
        """Return runs, newest first, behind a place: time of creation and id."""
        created, run_id = after or (0, "")
        request = rs.ReadRunsRequest(limit=limit, after=run_id, after_unix_ms=created)
        answer: rs.ReadRunsResponse = await self._call(self._runs.ReadRuns, request)
        return answer

    async def run(self, run_id: str) -> rs.ReadRunResponse:
        """Return a run with its progress. Raise NotFound."""
        request = rs.ReadRunRequest(run_id=run_id, with_progress=True)
        answer: rs.ReadRunResponse = await self._call(self._runs.ReadRun, request)
        return answer

    async def run_id(self, run_id: str) -> str:
        """Return the whole id of a run. Raise NotFound."""
        answer = await self._call(self._runs.ReadRun, rs.ReadRunRequest(run_id=run_id))
        return str(answer.run.run_id)

    async def members(self, run_id: str) -> list[rs.Member]:
        """Return the rollout nodes of a run."""
        request = rs.ReadMembersRequest(run_id=run_id)
        return list((await self._call(self._runs.ReadMembers, request)).members)

    async def policies(self, run_id: str, after: int = 0) -> list[rs.StoredPolicy]:
        """Return the policies of a run stored after the one with a number, oldest first."""
        policies: list[rs.StoredPolicy] = []
        request = rs.ReadPoliciesRequest(run_id=run_id, after=after)
        while page := list((await self._call(self._runs.ReadPolicies, request)).policies):
            policies += page
            request.after = page[-1].number
        return policies

    async def dead(self, limit: int, before: int) -> list[rs.StoredDeadLetter]:
        """Return dead letters with lower numbers, newest first."""
        request = rs.ReadDeadRequest(limit=limit, before=before)
        return list((await self._call(self._runs.ReadDead, request)).letters)

    async def stats(self, run_id: str = "") -> dict[str, int]:
        """Return counts by name."""
        request = ts.GetStatsRequest(run_id=run_id)
        return dict((await self._call(self._trees.GetStats, request)).counts)

    async def summaries(self, filters: ts.TreeFilter) -> list[ts.TreeSummary]:
        """Return trees without their segments, newest first."""
        request = ts.ListTreesRequest(filter=filters)
        return list((await self._call(self._trees.ListTrees, request)).trees)

    async def tree(self, tree_id: bytes) -> tree_pb2.Tree:
        """Return a tree with its plans, by its id or a unique beginning. Raise NotFound."""
        request = ts.GetTreeRequest(tree_id=tree_id, plans=True)
        tree: tree_pb2.Tree = (await self._call(self._trees.GetTree, request)).tree
        return tree

    async def summary(self, tree_id: bytes) -> ts.TreeSummary:
        """Return a tree of a whole id without its segments. Raise NotFound."""
        found = await self.summaries(ts.TreeFilter(tree_ids=[tree_id], limit=1))
        if not found:
            raise NotFound(f"there is no tree {tree_id.hex()}")
        return found[0]

    async def trees(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        """Return whole trees of ids, in order of opening; none for no ids."""
        if not tree_ids:  # a filter without ids would be one for all trees
            return []
        request = ts.StreamTreesRequest(filter=ts.TreeFilter(tree_ids=tree_ids))
        trees: list[tree_pb2.Tree] = []
        try:
            async for response in self._trees.StreamTrees(request, timeout=_TREES_S):
                trees.append(response.tree)
        except grpc.RpcError as error:
            raise error_of(error, "StreamTrees") from None
        return trees

    async def consumers(self, segment: bytes) -> list[ts.Consumer]:
        """Return the batches that trained on a segment's tree."""
        request = ts.ListConsumersRequest(segment=segment)
        return list((await self._call(self._trees.ListConsumers, request)).consumers)

    async def texts(self, run_id: str) -> TokenTexts | None:
        """Return the tokenizer of a run; None if the store keeps none."""
        run = (await self._call(self._runs.ReadRun, rs.ReadRunRequest(run_id=run_id))).run
        digest = run.tokenizer_digest
        if not digest:
            return None
        if digest not in self._texts:
            request = rs.ReadTokenizerRequest(run_id=run_id)
            data = (await self._call(self._runs.ReadTokenizer, request)).tokenizer
            made = await asyncio.to_thread(TokenTexts, data)
            while len(self._texts) >= _MOST_TOKENIZERS:
                self._texts.popitem(last=False)
            self._texts[digest] = made
        return self._texts[digest]

    @staticmethod
    async def _call(method: Any, request: Message) -> Any:
        return await rpc.call(method, request, deadline_s=_DEADLINE_S, patience_s=_PATIENCE_S)
