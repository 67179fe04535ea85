"""Client for asyncio: the calls of `Client`, each a coroutine or an asynchronous iterator.

Every call has a deadline and raises a BanyanError with the problem and the remedy. Calls that may
be made twice are repeated while the other side is away, until their deadline.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

from banyan.client import calls
from banyan.client.async_connection import AsyncConnection
from banyan.client.connecting import endpoints
from banyan.recipe import Recipe
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts


class AsyncClient(AsyncConnection):
    """Asynchronous connection to a treestore and, for commands, to a gateway.

    Make and use it within one running event loop. Ids may be unique prefixes.

    store: host:port of the treestore
    gateway: host:port of the gateway; empty for queries alone
    deadline_s: seconds that a call may take, its repetitions included
    secret: content of the file `secret` in the state folder of a running system
    """

    @classmethod
    def connect(
        cls,
        where: str | Path | None = None,
        *,
        gateway: str = "",
        secret: str = "",
        deadline_s: float = 30.0,
    ) -> Self:
        """Return a client of the system that runs on a state folder, or of an address.

        Ports and secret are those in the folder. Nothing is sent yet.

        where: state folder, or host:port of a treestore; None for BANYAN_STATE or `.banyan`
        gateway, secret: of an address; the secret may come from the file BANYAN_SECRET_FILE, too

        Raises NotFound if nothing runs on the folder, InvalidInput if it holds no store.
        """
        found = endpoints(where, gateway, secret)
        return cls(found.store, found.gateway, deadline_s, found.secret)

    # -- runs --

    async def runs(self) -> list[rs.Run]:
        """Return all runs, newest first."""
        return await self._call(calls.runs())

    async def run(self, run_id: str) -> rs.Run:
        """Return a run."""
        return (await self._call(calls.run(run_id))).run

    async def lived(self, run_id: str) -> float:
        """Return the seconds that a run has taken, without its pauses."""
        return (await self._call(calls.run(run_id))).live_ms / 1000

    async def progress(self, run_id: str) -> rs.ReadProgressResponse:
        """Return the progress of a run."""
        return await self._call(calls.progress(run_id))

    async def policies(self, run_id: str, abandoned: bool = False) -> list[rs.StoredPolicy]:
        """Return the policies of a run, oldest first."""
        policies: list[rs.StoredPolicy] = []
        request = rs.ReadPoliciesRequest(run_id=run_id, abandoned=abandoned)
        while page := await self._call(calls.policies(request)):
            policies += page
            request.after = page[-1].number
        return policies

    async def allocations(self, run_id: str, first: int = 0) -> list[rs.GroupAllocation]:
        """Return the curriculum's decisions for the training groups from an ordinal on."""
        allocations: list[rs.GroupAllocation] = []
        # Pages are bounded in size; only an empty one is the last.
        while page := await self._call(calls.allocations(run_id, first)):
            allocations += page
            first = page[-1].ordinal + 1
        return allocations

    async def members(self, run_id: str) -> list[rs.Member]:
        """Return the rollout nodes of a run."""
        return await self._call(calls.members(run_id))

    async def watch(self, run_id: str) -> AsyncIterator[gw.WatchRunResponse]:
        """Yield the events of a run until it is over, or for a week.

        Raises TemporaryError if the gateway restarts; a new call begins with all that is known.
        """
        async for answer in self._stream(calls.watch(run_id), calls.WATCH_S):
            yield answer

    async def create(
        self, recipe: Recipe | str, *, folder: str = "", request_id: str = ""
    ) -> gw.CreateRunResponse:
        """Create a run of a recipe; it begins at once.

        The call is repeated under one request id while the gateway is away, so at most one run
        comes of it.

        recipe: resolved recipe, or its JSON
        folder: folder of its checkpoints; empty for the system's own
        request_id: key of the run, to repeat a call of an earlier process; empty for a new one
        """
        return await self._call(calls.create(recipe, folder, request_id))

    async def cancel(self, run_id: str, cause: str, pause: bool = False) -> rs.Run:
        """End a run as CANCELLED, or pause it."""
        return await self._call(calls.cancel(run_id, cause, pause))

    async def resume(self, run_id: str, failed: bool = False) -> rs.Run:
        """Go on with a paused run; with `failed` also with one that has FAILED."""
        return await self._call(calls.resume(run_id, failed))

    async def remove(
        self, run_id: str, keep: "rs.Kept.ValueType" = rs.KEPT_UNSPECIFIED, begin: bool = False
    ) -> rs.RemoveRunResponse:
        """Remove a part of a run that is over; call until the response is `done`.

        keep: the part that stays
        begin: only check and mark the run, remove nothing
        """
        return await self._call(calls.remove(run_id, keep, begin))

    async def create_token(self, run_id: str, hours: float) -> gw.CreateTokenResponse:
        """Return a token with which nodes may join a run."""
        return await self._call(calls.create_token(run_id, hours))

    # -- trees --

    async def trees(self, run_id: str = "", limit: int = 50, **more: Any) -> list[ts.TreeSummary]:
        """Return summaries of trees, newest first. `more`: fields of `TreeFilter`."""
        return await self._call(calls.trees(ts.TreeFilter(run_id=run_id, limit=limit, **more)))

    async def listed(self, filters: ts.TreeFilter) -> list[ts.TreeSummary]:
        """Return summaries of the trees of a filter, newest first."""
        return await self._call(calls.trees(filters))

    async def tree(self, tree_id: bytes, plans: bool = False) -> tree_pb2.Tree:
        """Return a tree with its segments, leaves and scores, and on request its plans."""
        return await self._call(calls.tree(tree_id, plans))

    async def whole_trees(
        self, run_id: str, tree_ids: Sequence[bytes] = (), **more: Any
    ) -> AsyncIterator[tree_pb2.Tree]:
        """Yield whole trees, in order of opening."""
        filters = ts.TreeFilter(run_id=run_id, tree_ids=tree_ids, **more)
        async for answer in self._stream(calls.whole_trees(filters), calls.STREAM_S):
            yield answer

    async def export(self, run_id: str, **more: Any) -> AsyncIterator[str]:
        """Yield trees as JSON lines."""
        filters = ts.TreeFilter(run_id=run_id, **more)
        async for answer in self._stream(calls.export(filters), calls.STREAM_S):
            yield answer

    async def ancestry(self, segment: bytes) -> ts.GetAncestryResponse:
        """Return the path from the root to a segment, and the scores below it."""
        return await self._call(calls.ancestry(segment))

    async def consumers(self, segment: bytes) -> list[ts.Consumer]:
        """Return the batches that used a segment's tree, and the policies that they made."""
        return await self._call(calls.consumers(segment))

    async def stats(self, run_id: str = "") -> dict[str, int]:
        """Return counts by name."""
        return await self._call(calls.stats(run_id))

    # -- scores after the run's own --

    async def leaves_to_rescore(
        self, rescorer: rs.Rescorer
    ) -> AsyncIterator[list[rs.LeafToRescore]]:
        """Yield the leaves of a run that a scorer has not scored again, some trees at a time."""
        request = rs.ReadLeavesToRescoreRequest(rescorer=rescorer)
        answer = rs.ReadLeavesToRescoreResponse()
        while not answer.done:
            answer = await self._call(calls.leaves_to_rescore(request))
            request.after = answer.last
            yield list(answer.leaves)

    async def put_rescores(self, rescorer: rs.Rescorer, leaves: Sequence[rs.RescoredLeaf]) -> int:
        """Store scores beside the run's own; return the number of those that are new."""
        return await self._call(calls.put_rescores(rescorer, leaves))

    async def compared_rescores(
        self, rescorer: rs.Rescorer
    ) -> AsyncIterator[rs.CompareRescoresResponse]:
        """Yield counts and sums of old and new scores, some trees at a time."""
        request, answer = rs.CompareRescoresRequest(rescorer=rescorer), rs.CompareRescoresResponse()
        while not answer.done:
            answer = await self._call(calls.compare_rescores(request))
            request.after = answer.last
            yield answer

    # -- dead letters --

    async def dead(self, limit: int = 50) -> list[rs.StoredDeadLetter]:
        """Return dead letters, newest first."""
        return await self._call(calls.dead(limit))

    async def replay_dead(self, number: int) -> None:
        """Publish the message of a dead letter again."""
        await self._call(calls.replay_dead(number))
