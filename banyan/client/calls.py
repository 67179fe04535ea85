"""Calls of both clients: the method, the request, and what of the response is returned.

A call that is not `safe` is sent once: if its answer is lost, nobody can tell whether it was
carried out. Creating is safe, because the same request id answers with the run that is there.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from banyan.errors import BanyanError, DeadlineMissed, InvalidInput, TemporaryError
from banyan.recipe import Recipe
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts

Answer = TypeVar("Answer")
MAX_BYTES = 64 << 20
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.enable_http_proxy", 0),
    # A host that lost its power says no goodbye: a call of a week must not wait for it that long.
    # gRPC gives it a minute to answer a ping.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
STREAM_S = 600.0
"""Deadline of a stream of whole trees."""
WATCH_S = 7 * 86_400.0
"""Deadline of watching a run."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A call that is still to be made.

    service: trees, runs or gateway
    read: makes the answer of the response
    safe: whether it may be repeated when its answer is lost
    """

    service: str
    method: str
    request: Any
    read: Callable[[Any], Answer]
    safe: bool = True


def runs() -> Call[list[rs.Run]]:
    return Call("runs", "ReadRuns", rs.ReadRunsRequest(), lambda r: list(r.runs))


def run(run_id: str) -> Call[rs.ReadRunResponse]:
    return Call("runs", "ReadRun", rs.ReadRunRequest(run_id=run_id), _whole)


def progress(run_id: str) -> Call[rs.ReadProgressResponse]:
    return Call("runs", "ReadProgress", rs.ReadProgressRequest(run_id=run_id), _whole)


def policies(request: rs.ReadPoliciesRequest) -> Call[list[rs.StoredPolicy]]:
    return Call("runs", "ReadPolicies", request, lambda r: list(r.policies))


def allocations(run_id: str, first: int) -> Call[list[rs.GroupAllocation]]:
    request = rs.ReadAllocationsRequest(run_id=run_id, first=first)
    return Call("runs", "ReadAllocations", request, lambda r: list(r.allocations))


def members(run_id: str) -> Call[list[rs.Member]]:
    request = rs.ReadMembersRequest(run_id=run_id)
    return Call("runs", "ReadMembers", request, lambda r: list(r.members))


def create(recipe: Recipe | str, folder: str, request_id: str) -> Call[gw.CreateRunResponse]:
    data = recipe if isinstance(recipe, str) else recipe.model_dump_json()
    request = gw.CreateRunRequest(
        recipe_json=data, request_id=request_id or uuid.uuid4().hex, folder=folder
    )
    return Call("gateway", "CreateRun", request, _whole)


def cancel(run_id: str, cause: str, pause: bool) -> Call[rs.Run]:
    request = gw.CancelRunRequest(run_id=run_id, pause=pause, cause=cause)
    return Call("gateway", "CancelRun", request, lambda r: r.run, safe=False)


def resume(run_id: str, failed: bool) -> Call[rs.Run]:
    request = gw.ResumeRunRequest(run_id=run_id, failed=failed)
    return Call("gateway", "ResumeRun", request, lambda r: r.run, safe=False)


def remove(run_id: str, keep: "rs.Kept.ValueType", begin: bool) -> Call[rs.RemoveRunResponse]:
    request = rs.RemoveRunRequest(run_id=run_id, keep=keep, begin=begin)
    return Call("runs", "RemoveRun", request, _whole)


def create_token(run_id: str, hours: float) -> Call[gw.CreateTokenResponse]:
    request = gw.CreateTokenRequest(run_id=run_id, valid_s=int(hours * 3600))
    return Call("gateway", "CreateToken", request, _whole, safe=False)


def trees(filters: ts.TreeFilter) -> Call[list[ts.TreeSummary]]:
    return Call("trees", "ListTrees", ts.ListTreesRequest(filter=filters), lambda r: list(r.trees))


def tree(tree_id: bytes, plans: bool) -> Call[tree_pb2.Tree]:
    request = ts.GetTreeRequest(tree_id=tree_id, plans=plans)
    return Call("trees", "GetTree", request, lambda r: r.tree)


def ancestry(segment: bytes) -> Call[ts.GetAncestryResponse]:
    return Call("trees", "GetAncestry", ts.GetAncestryRequest(segment=segment), _whole)


def consumers(segment: bytes) -> Call[list[ts.Consumer]]:
    request = ts.ListConsumersRequest(segment=segment)
    return Call("trees", "ListConsumers", request, lambda r: list(r.consumers))


def stats(run_id: str) -> Call[dict[str, int]]:
    return Call("trees", "GetStats", ts.GetStatsRequest(run_id=run_id), lambda r: dict(r.counts))


def leaves_to_rescore(
    request: rs.ReadLeavesToRescoreRequest,
) -> Call[rs.ReadLeavesToRescoreResponse]:
    return Call("runs", "ReadLeavesToRescore", request, _whole)


def put_rescores(rescorer: rs.Rescorer, leaves: Sequence[rs.RescoredLeaf]) -> Call[int]:
    request = rs.PutRescoresRequest(rescorer=rescorer, leaves=leaves)
    return Call("runs", "PutRescores", request, lambda r: int(r.stored), safe=False)


def compare_rescores(request: rs.CompareRescoresRequest) -> Call[rs.CompareRescoresResponse]:
    return Call("runs", "CompareRescores", request, _whole)


def dead(limit: int) -> Call[list[rs.StoredDeadLetter]]:
    return Call("runs", "ReadDead", rs.ReadDeadRequest(limit=limit), lambda r: list(r.letters))


def replay_dead(number: int) -> Call[None]:
    request = rs.ReplayDeadRequest(id=number)
    return Call("runs", "ReplayDead", request, lambda r: None, safe=False)


def whole_trees(filters: ts.TreeFilter) -> Call[tree_pb2.Tree]:
    request = ts.StreamTreesRequest(filter=filters)
    return Call("trees", "StreamTrees", request, lambda r: r.tree)


def export(filters: ts.TreeFilter) -> Call[str]:
    request = ts.ExportTreesRequest(filter=filters)
    return Call("trees", "ExportTrees", request, lambda r: str(r.line))


def watch(run_id: str) -> Call[gw.WatchRunResponse]:
    return Call("gateway", "WatchRun", gw.WatchRunRequest(run_id=run_id), _whole)


def named(call: Call[Any]) -> str:
    """Return the name of a call's other side, for messages."""
    return "gateway" if call.service == "gateway" else "treestore"


def repeated(call: Call[Any], failure: BanyanError) -> bool:
    """Return whether a call that failed may be made once more; a missed deadline never is."""
    temporary = isinstance(failure, TemporaryError) and not isinstance(failure, DeadlineMissed)
    return call.safe and temporary


def gateway_missing() -> InvalidInput:
    """Return the error of a command without a gateway."""
    return InvalidInput(
        "this needs a running gateway; none was named: connect to the state folder of a running"
        " system, or name gateway=HOST:PORT"
    )


def _whole(response: Any) -> Any:
    return response
