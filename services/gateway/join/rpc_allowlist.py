"""What a joined node may ask for through the gateway, and about whom: its own run, and itself (PROTOCOL 8). Pure."""

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from banyan.errors import InvalidInput, Refused
from banyan.reasons import Reason
from banyan.v1 import learner_service_pb2 as learner
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import treestore_service_pb2 as trees

M = TypeVar("M", bound=Message)
FORBIDDEN = Reason.PERMISSION_DENIED
_TREES, _RUNS, _LEARNER = (
    "/banyan.v1.TreeStoreService/",
    "/banyan.v1.RunStoreService/",
    "/banyan.v1.LearnerService/",
)
TO_STORE: dict[str, type[Message]] = {
    _TREES + "ClaimTree": trees.ClaimTreeRequest,
    _TREES + "ClaimTrees": trees.ClaimTreesRequest,
    _TREES + "RenewClaim": trees.RenewClaimRequest,
    _TREES + "RenewClaims": trees.RenewClaimsRequest,
    _TREES + "ReturnTree": trees.ReturnTreeRequest,
    _TREES + "AwaitIngested": trees.AwaitIngestedRequest,
    _TREES + "AwaitTreesIngested": trees.AwaitTreesIngestedRequest,
    _TREES + "AwaitScores": trees.AwaitScoresRequest,
    _RUNS + "ReadRun": runs.ReadRunRequest,
    _RUNS + "ReadPolicies": runs.ReadPoliciesRequest,
    _RUNS + "PutMember": runs.PutMemberRequest,
}
BLOBS, BLOB = _TREES + "PutBlob", trees.PutBlobRequest
CLAIMED, CLAIMED_TREE = _TREES + "StreamClaimed", trees.StreamClaimedRequest
TO_LEARNER, WEIGHTS = _LEARNER + "FetchWeights", learner.FetchWeightsRequest
JOIN = "/banyan.v1.GatewayService/JoinSwarm"
_HOST = 255  # characters: no name of a host is longer

# Whose run and whose node a request is about, where it says so.
_RUN: dict[str, Callable[[Any], str]] = {
    _RUNS + "ReadRun": lambda request: str(request.run_id),
    _RUNS + "ReadPolicies": lambda request: str(request.run_id),
    _RUNS + "PutMember": lambda request: str(request.member.run_id),
}
_NODE: dict[str, Callable[[Any], str]] = {
    _TREES + "ClaimTree": lambda request: str(request.node_id),
    _TREES + "ClaimTrees": lambda request: ", ".join(
        sorted({str(claim.node_id) for claim in request.claims})
    ),
    _RUNS + "PutMember": lambda request: str(request.member.node_id),
}


def parse(kind: type[M], data: bytes) -> M:
    """The message. Raises InvalidInput for bytes that are none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidInput(
            f"the request is no {kind.DESCRIPTOR.full_name}: {len(data)} bytes that cannot be read"
        ) from None


def check(method: str, data: bytes, run_id: str, node_id: str) -> None:
    """Raises InvalidInput for what is no request of the method, Refused for one about another run or another node."""
    request = parse(TO_STORE[method], data)
    asked = _RUN[method](request) if method in _RUN else run_id
    if asked != run_id:
        raise Refused(f"this token opens run {run_id}, not {short(asked)}", FORBIDDEN)
    named = _NODE[method](request) if method in _NODE else node_id
    if named != node_id:
        raise Refused(
            f"node {node_id} may speak for itself only, not for {short(named)}", FORBIDDEN
        )
    if isinstance(request, runs.PutMemberRequest):
        check_host(request.member.host)
        if request.member.public_key or not request.member.joined:
            raise Refused(
                "a joined node says of itself that it joined, and its key was noted then", FORBIDDEN
            )


def check_host(host: str) -> None:
    """Raises InvalidInput for what is no host's name."""
    if len(host) > _HOST:
        raise InvalidInput(
            f"host {short(host)} has {len(host)} characters; at most {_HOST} are taken"
        )


def short(name: str) -> str:
    """A name that somebody else chose, as it may stand in a message."""
    return repr(name if len(name) <= 64 else f"{name[:64]}…")
