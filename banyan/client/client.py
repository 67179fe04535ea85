"""Synchronous client for people and notebooks: runs, trees, lineage, dead letters.

Every call has a deadline and raises a BanyanError with the problem and the remedy. Calls that may
be made twice are repeated while the other side is away, until their deadline.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from banyan.client import calls
from banyan.client.connecting import endpoints
from banyan.client.connection import Connection
from banyan.recipe import Recipe
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts


class Client(Connection):
    """Connection to a treestore and, for commands, to a gateway. Ids may be unique prefixes.

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

    def runs(self) -> list[rs.Run]:
        """Return all runs, newest first."""
        return self._call(calls.runs())

    def run(self, run_id: str) -> rs.Run:
        """Return a run."""
        return self._call(calls.run(run_id)).run

    def lived(self, run_id: str) -> float:
        """Return the seconds that a run has taken, without its pauses."""
        return self._call(calls.run(run_id)).live_ms / 1000

    def progress(self, run_id: str) -> rs.ReadProgressResponse:
        """Return the progress of a run."""
        return self._call(calls.progress(run_id))

    def policies(self, run_id: str, abandoned: bool = False) -> list[rs.StoredPolicy]:
        """Return the policies of a run, oldest first."""
        policies: list[rs.StoredPolicy] = []
        request = rs.ReadPoliciesRequest(run_id=run_id, abandoned=abandoned)
        while page := self._call(calls.policies(request)):
            policies += page
            request.after = page[-1].number
        return policies

    def allocations(self, run_id: str, first: int = 0) -> list[rs.GroupAllocation]:
        """Return the curriculum's decisions for the training groups from an ordinal on."""
        allocations: list[rs.GroupAllocation] = []
        # Pages are bounded in size; only an empty one is the last.
        while page := self._call(calls.allocations(run_id, first)):
            allocations += page
            first = page[-1].ordinal + 1
        return allocations

    def members(self, run_id: str) -> list[rs.Member]:
        """Return the rollout nodes of a run."""
        return self._call(calls.members(run_id))

    def watch(self, run_id: str) -> Iterator[gw.WatchRunResponse]:
        """Yield the events of a run until it is over, or for a week.

        Raises TemporaryError if the gateway restarts; a new call begins with all that is known.
        """
        yield from self._stream(calls.watch(run_id), calls.WATCH_S)

    def create(
        self, recipe: Recipe | str, *, folder: str = "", request_id: str = ""
    ) -> gw.CreateRunResponse:
        """Create a run of a recipe; it begins at once.

        The call is repeated under one request id while the gateway is away, so at most one run
        comes of it.

        recipe: resolved recipe, or its JSON
        folder: folder of its checkpoints; empty for the system's own
        request_id: key of the run, to repeat a call of an earlier process; empty for a new one
        """
        return self._call(calls.create(recipe, folder, request_id))

    def cancel(self, run_id: str, cause: str, pause: bool = False) -> rs.Run:
        """End a run as CANCELLED, or pause it."""
        return self._call(calls.cancel(run_id, cause, pause))

    def resume(self, run_id: str, failed: bool = False) -> rs.Run:
        """Go on with a paused run; with `failed` also with one that has FAILED."""
        return self._call(calls.resume(run_id, failed))

    def remove(
        self, run_id: str, keep: "rs.Kept.ValueType" = rs.KEPT_UNSPECIFIED, begin: bool = False
    ) -> rs.RemoveRunResponse:
        """Remove a part of a run that is over; call until the response is `done`.

        keep: the part that stays
        begin: only check and mark the run, remove nothing
        """
        return self._call(calls.remove(run_id, keep, begin))

    def create_token(self, run_id: str, hours: float) -> gw.CreateTokenResponse:
        """Return a token with which nodes may join a run."""
        return self._call(calls.create_token(run_id, hours))

    # -- trees --

    def trees(self, run_id: str = "", limit: int = 50, **more: Any) -> list[ts.TreeSummary]:
        """Return summaries of trees, newest first. `more`: fields of `TreeFilter`."""
        return self._call(calls.trees(ts.TreeFilter(run_id=run_id, limit=limit, **more)))

    def listed(self, filters: ts.TreeFilter) -> list[ts.TreeSummary]:
        """Return summaries of the trees of a filter, newest first."""
        return self._call(calls.trees(filters))

    def tree(self, tree_id: bytes, plans: bool = False) -> tree_pb2.Tree:
        """Return a tree with its segments, leaves and scores, and on request its plans."""
        return self._call(calls.tree(tree_id, plans))

    def whole_trees(
        self, run_id: str, tree_ids: Sequence[bytes] = (), **more: Any
    ) -> Iterator[tree_pb2.Tree]:
        """Yield whole trees, in order of opening."""
        filters = ts.TreeFilter(run_id=run_id, tree_ids=tree_ids, **more)
        yield from self._stream(calls.whole_trees(filters), calls.STREAM_S)

    def export(self, run_id: str, **more: Any) -> Iterator[str]:
        """Yield trees as JSON lines."""
        filters = ts.TreeFilter(run_id=run_id, **more)
        yield from self._stream(calls.export(filters), calls.STREAM_S)

    def ancestry(self, segment: bytes) -> ts.GetAncestryResponse:
        """Return the path from the root to a segment, and the scores below it."""
        return self._call(calls.ancestry(segment))

    def consumers(self, segment: bytes) -> list[ts.Consumer]:
        """Return the batches that used a segment's tree, and the policies that they made."""
        return self._call(calls.consumers(segment))

    def stats(self, run_id: str = "") -> dict[str, int]:
        """Return counts by name."""
        return self._call(calls.stats(run_id))

    # -- scores after the run's own --

    def leaves_to_rescore(self, rescorer: rs.Rescorer) -> Iterator[list[rs.LeafToRescore]]:
        """Yield the leaves of a run that a scorer has not scored again, some trees at a time."""
        request = rs.ReadLeavesToRescoreRequest(rescorer=rescorer)
        answer = rs.ReadLeavesToRescoreResponse()
        while not answer.done:
            answer = self._call(calls.leaves_to_rescore(request))
            request.after = answer.last
            yield list(answer.leaves)

    def put_rescores(self, rescorer: rs.Rescorer, leaves: Sequence[rs.RescoredLeaf]) -> int:
        """Store scores beside the run's own; return the number of those that are new."""
        return self._call(calls.put_rescores(rescorer, leaves))

    def compared_rescores(self, rescorer: rs.Rescorer) -> Iterator[rs.CompareRescoresResponse]:
        """Yield counts and sums of old and new scores, some trees at a time."""
        request, answer = rs.CompareRescoresRequest(rescorer=rescorer), rs.CompareRescoresResponse()
        while not answer.done:
            answer = self._call(calls.compare_rescores(request))
            request.after = answer.last
            yield answer

    # -- dead letters --

    def dead(self, limit: int = 50) -> list[rs.StoredDeadLetter]:
        """Return dead letters, newest first."""
        return self._call(calls.dead(limit))

    def replay_dead(self, number: int) -> None:
        """Publish the message of a dead letter again."""
        self._call(calls.replay_dead(number))
