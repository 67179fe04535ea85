"""Synchronous client for people and notebooks: runs, trees, lineage, dead letters.

    with Client("127.0.0.1:7101", secret=Path(".banyan/secret").read_text()) as client:
        for tree in client.trees(run_id):
            print(tree.tree_id.hex(), tree.mean_reward)

Every call has a deadline and raises a BanyanError with the problem and the remedy.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import grpc

from banyan.errors import InvalidInput
from banyan.runtime import secret as secret_module
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from banyan.wire.status import error_of

MAX_BYTES = 64 << 20
_OPTIONS = [("grpc.max_receive_message_length", MAX_BYTES), ("grpc.enable_http_proxy", 0)]


class Client:
    """Connection to a treestore and, for commands, to a gateway. Ids may be unique prefixes.

    store: host:port of the treestore
    gateway: host:port of the gateway; empty for queries alone
    deadline_s: seconds that a call may take
    secret: content of the file `secret` in the state folder of a running system
    """

    def __init__(
        self, store: str, gateway: str = "", deadline_s: float = 30.0, secret: str = ""
    ) -> None:
        self._deadline_s = deadline_s
        self._channels = [grpc.insecure_channel(store, options=_OPTIONS)]
        through = secret_module.channel(self._channels[0], secret)
        self._trees = ts_grpc.TreeStoreServiceStub(through)
        self._runs = rs_grpc.RunStoreServiceStub(through)
        self._gateway: gw_grpc.GatewayServiceStub | None = None
        if gateway:
            self._channels.append(grpc.insecure_channel(gateway, options=_OPTIONS))
            self._gateway = gw_grpc.GatewayServiceStub(
                secret_module.channel(self._channels[-1], secret)
            )

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        for channel in self._channels:
            channel.close()

    # -- runs --

    def runs(self) -> list[rs.Run]:
        """Return all runs, newest first."""
        return list(self._call(self._runs.ReadRuns, rs.ReadRunsRequest()).runs)

    def run(self, run_id: str) -> rs.Run:
        """Return a run."""
        run: rs.Run = self._call(self._runs.ReadRun, rs.ReadRunRequest(run_id=run_id)).run
        return run

    def lived(self, run_id: str) -> float:
        """Return the seconds that a run has taken, without its pauses."""
        answer = self._call(self._runs.ReadRun, rs.ReadRunRequest(run_id=run_id))
        return float(answer.live_ms) / 1000

    def progress(self, run_id: str) -> rs.ReadProgressResponse:
        """Return the progress of a run."""
        progress: rs.ReadProgressResponse = self._call(
            self._runs.ReadProgress, rs.ReadProgressRequest(run_id=run_id)
        )
        return progress

    def policies(self, run_id: str, abandoned: bool = False) -> list[rs.StoredPolicy]:
        """Return the policies of a run, oldest first."""
        policies: list[rs.StoredPolicy] = []
        request = rs.ReadPoliciesRequest(run_id=run_id, abandoned=abandoned)
        while page := list(self._call(self._runs.ReadPolicies, request).policies):
            policies += page
            request.after = page[-1].number
        return policies

    def allocations(self, run_id: str, first: int = 0) -> list[rs.GroupAllocation]:
        """Return the curriculum's decisions for the training groups from an ordinal on."""
        allocations: list[rs.GroupAllocation] = []
        while True:  # pages are bounded in size; only an empty one is the last
            request = rs.ReadAllocationsRequest(run_id=run_id, first=first)
            page = list(self._call(self._runs.ReadAllocations, request).allocations)
            if not page:
                return allocations
            allocations += page
            first = page[-1].ordinal + 1

    def members(self, run_id: str) -> list[rs.Member]:
        """Return the rollout nodes of a run."""
        return list(
            self._call(self._runs.ReadMembers, rs.ReadMembersRequest(run_id=run_id)).members
        )

    def watch(self, run_id: str) -> Iterator[gw.WatchRunResponse]:
        """Yield the events of a run until it is over."""
        yield from self._stream(self._commands().WatchRun, gw.WatchRunRequest(run_id=run_id), None)

    def cancel(self, run_id: str, cause: str, pause: bool = False) -> rs.Run:
        """End a run as CANCELLED, or pause it."""
        request = gw.CancelRunRequest(run_id=run_id, pause=pause, cause=cause)
        run: rs.Run = self._call(self._commands().CancelRun, request).run
        return run

    def remove(
        self, run_id: str, keep: "rs.Kept.ValueType" = rs.KEPT_UNSPECIFIED, begin: bool = False
    ) -> rs.RemoveRunResponse:
        """Remove a part of a run that is over; call until the response is `done`.

        keep: the part that stays
        begin: only check and mark the run, remove nothing
        """
        request = rs.RemoveRunRequest(run_id=run_id, keep=keep, begin=begin)
        removed: rs.RemoveRunResponse = self._call(self._runs.RemoveRun, request)
        return removed

    def create_token(self, run_id: str, hours: float) -> gw.CreateTokenResponse:
        """Return a token with which nodes may join a run."""
        request = gw.CreateTokenRequest(run_id=run_id, valid_s=int(hours * 3600))
        created: gw.CreateTokenResponse = self._call(self._commands().CreateToken, request)
        return created

    # -- trees --

    def trees(self, run_id: str = "", limit: int = 50, **more: Any) -> list[ts.TreeSummary]:
        """Return summaries of trees, newest first. `more`: states, purpose, label."""
        request = ts.ListTreesRequest(filter=ts.TreeFilter(run_id=run_id, limit=limit, **more))
        return list(self._call(self._trees.ListTrees, request).trees)

    def tree(self, tree_id: bytes, plans: bool = False) -> tree_pb2.Tree:
        """Return a tree with its segments, leaves and scores, and on request its plans."""
        tree: tree_pb2.Tree = self._call(
            self._trees.GetTree, ts.GetTreeRequest(tree_id=tree_id, plans=plans)
        ).tree
        return tree

    def whole_trees(
        self, run_id: str, tree_ids: Sequence[bytes] = (), **more: Any
    ) -> Iterator[tree_pb2.Tree]:
        """Yield whole trees, in order of opening."""
        request = ts.StreamTreesRequest(
            filter=ts.TreeFilter(run_id=run_id, tree_ids=tree_ids, **more)
        )
        for response in self._stream(self._trees.StreamTrees, request, 600.0):
            yield response.tree

    def export(self, run_id: str, **more: Any) -> Iterator[str]:
        """Yield trees as JSON lines."""
        request = ts.ExportTreesRequest(filter=ts.TreeFilter(run_id=run_id, **more))
        for response in self._stream(self._trees.ExportTrees, request, 600.0):
            yield response.line

    def ancestry(self, segment: bytes) -> ts.GetAncestryResponse:
        """Return the path from the root to a segment, and the scores below it."""
        answer: ts.GetAncestryResponse = self._call(
            self._trees.GetAncestry, ts.GetAncestryRequest(segment=segment)
        )
        return answer

    def consumers(self, segment: bytes) -> list[ts.Consumer]:
        """Return the batches that used a segment's tree, and the policies that they made."""
        return list(
            self._call(
                self._trees.ListConsumers, ts.ListConsumersRequest(segment=segment)
            ).consumers
        )

    def stats(self, run_id: str = "") -> dict[str, int]:
        """Return counts by name."""
        return dict(self._call(self._trees.GetStats, ts.GetStatsRequest(run_id=run_id)).counts)

    # -- scores after the run's own --

    def leaves_to_rescore(self, rescorer: rs.Rescorer) -> Iterator[list[rs.LeafToRescore]]:
        """Yield the leaves of a run that a scorer has not scored again, some trees at a time."""
        request = rs.ReadLeavesToRescoreRequest(rescorer=rescorer)
        answer = rs.ReadLeavesToRescoreResponse()
        while not answer.done:
            answer = self._call(self._runs.ReadLeavesToRescore, request)
            request.after = answer.last
            yield list(answer.leaves)

    def put_rescores(self, rescorer: rs.Rescorer, leaves: Sequence[rs.RescoredLeaf]) -> int:
        """Store scores beside the run's own; return the number of those that are new."""
        request = rs.PutRescoresRequest(rescorer=rescorer, leaves=leaves)
        return int(self._call(self._runs.PutRescores, request).stored)

    def compared_rescores(self, rescorer: rs.Rescorer) -> Iterator[rs.CompareRescoresResponse]:
        """Yield counts and sums of old and new scores, some trees at a time."""
        request, answer = rs.CompareRescoresRequest(rescorer=rescorer), rs.CompareRescoresResponse()
        while not answer.done:
            answer = self._call(self._runs.CompareRescores, request)
            request.after = answer.last
            yield answer

    # -- dead letters --

    def dead(self, limit: int = 50) -> list[rs.StoredDeadLetter]:
        """Return dead letters, newest first."""
        return list(self._call(self._runs.ReadDead, rs.ReadDeadRequest(limit=limit)).letters)

    def replay_dead(self, number: int) -> None:
        """Publish the message of a dead letter again."""
        self._call(self._runs.ReplayDead, rs.ReplayDeadRequest(id=number))

    # -- calls --

    def _commands(self) -> gw_grpc.GatewayServiceStub:
        if self._gateway is None:
            raise InvalidInput("this needs a running gateway; none was named")
        return self._gateway

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self._deadline_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise error_of(error, "treestore") from None

    def _stream(self, method: Any, request: Any, deadline_s: float | None) -> Iterator[Any]:
        try:
            yield from method(request, timeout=deadline_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise error_of(error, "treestore") from None
