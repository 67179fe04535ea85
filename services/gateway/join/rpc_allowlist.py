"""The calls that a joined node may make through the gateway, about its own run and itself. Pure.

docs/protocol.md, Rights.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from banyan.errors import InvalidInput, Refused
from banyan.reasons import Reason
from banyan.v1 import learner_service_pb2 as learner
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import treestore_service_pb2 as trees
from banyan.v1 import verifier_service_pb2 as verifier

M = TypeVar("M", bound=Message)
FORBIDDEN = Reason.PERMISSION_DENIED
_TREES = "/banyan.v1.TreeStoreService/"
_RUNS = "/banyan.v1.RunStoreService/"
_LEARNER = "/banyan.v1.LearnerService/"
_VERIFIER = "/banyan.v1.VerifierService/"
STORE_METHODS: dict[str, type[Message]] = {
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
PUT_BLOB, PUT_BLOB_REQUEST = _TREES + "PutBlob", trees.PutBlobRequest
STREAM_CLAIMED, STREAM_CLAIMED_REQUEST = _TREES + "StreamClaimed", trees.StreamClaimedRequest
FETCH_WEIGHTS, FETCH_WEIGHTS_REQUEST = _LEARNER + "FetchWeights", learner.FetchWeightsRequest
ACT, ACT_REQUEST = _VERIFIER + "Act", verifier.ActRequest
JOIN_SWARM = "/banyan.v1.GatewayService/JoinSwarm"
_HOST = 255  # characters; no host name is longer

# The run and the node that a request is about, for requests that name them.
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
    """Return the message of its bytes. Raise InvalidInput if they cannot be read."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidInput(
            f"the request is no {kind.DESCRIPTOR.full_name}: {len(data)} bytes that cannot be read"
        ) from None


def check(method: str, data: bytes, run_id: str, node_id: str) -> None:
    """Raise InvalidInput for an unreadable request, Refused for one about another run or node."""
    request = parse(STORE_METHODS[method], data)
    requested_run = _RUN[method](request) if method in _RUN else run_id
    if requested_run != run_id:
        raise Refused(f"this token opens run {run_id}, not {short(requested_run)}", FORBIDDEN)
    requested_node = _NODE[method](request) if method in _NODE else node_id
    if requested_node != node_id:
        raise Refused(
            f"node {node_id} may speak for itself only, not for {short(requested_node)}", FORBIDDEN
        )
    if isinstance(request, runs.PutMemberRequest):
        check_host(request.member.host)
        if request.member.public_key or not request.member.joined:
            raise Refused(
                "PutMember of a joined node must set joined, and leave its key out, which was noted"
                " as it joined",
                FORBIDDEN,
            )


def check_host(host: str) -> None:
    """Raise InvalidInput for a text that cannot be a host name."""
    if len(host) > _HOST:
        raise InvalidInput(
            f"host {short(host)} has {len(host)} characters; at most {_HOST} are taken"
        )


def short(name: str) -> str:
    """Return a name from outside in the form in which messages may repeat it."""
    return repr(name if len(name) <= 64 else f"{name[:64]}…")
