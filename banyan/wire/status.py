"""Conversion between Banyan's errors and gRPC's statuses.

A status has the canonical code, the message, and an ErrorInfo with the machine-readable reason.
"""

from typing import cast

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from banyan.environments.cut import cut
from banyan.errors import (
    BanyanError,
    DeadlineMissed,
    InvalidInput,
    NotFound,
    NotReady,
    Refused,
    TemporaryError,
)
from banyan.reasons import Reason

DOMAIN = "banyan"
_CUT = "Internal error from Core"
"""Message of grpc.aio about a stream that the server ended while it was being sent.

The server's own status is lost then; another attempt gets it.
"""
_MOST = 7000
"""Bytes that a message may have on its way, twice: by gRPC's limit of 8 KiB a whole status is lost.
"""
_CODES: tuple[tuple[type[BanyanError], grpc.StatusCode], ...] = (
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (NotReady, grpc.StatusCode.UNIMPLEMENTED),
    (Refused, grpc.StatusCode.FAILED_PRECONDITION),
    (DeadlineMissed, grpc.StatusCode.DEADLINE_EXCEEDED),
    (TemporaryError, grpc.StatusCode.UNAVAILABLE),
    (BanyanError, grpc.StatusCode.INTERNAL),
)
# Reasons of Refused that concern access, not the state of the system.
_DOORS: dict[str, grpc.StatusCode] = {
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
}


def status_of(error: BanyanError) -> grpc.Status:
    """Return the gRPC status of an error: canonical code, message, ErrorInfo with its reason.

    A message that is too long for a status loses its middle.
    """
    code = _DOORS.get(error.reason) or next(code for cls, code in _CODES if isinstance(error, cls))
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    number = code_pb2.Code.Value(code.name)
    return rpc_status.to_status(
        status_pb2.Status(code=number, message=_fitting(str(error)), details=[detail])
    )


def error_of(error: grpc.RpcError, what: str) -> BanyanError:
    """Return the BanyanError that a failed call stands for. what: name of the other side."""
    code, message = error.code(), error.details() or ""
    reason = _reason(error)
    ended = code is grpc.StatusCode.INTERNAL and message == _CUT
    # CANCELLED, and not by this caller: the server had too many calls waiting, or was ending.
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or ended:
        return TemporaryError(
            f"{what}: {message or 'not reachable'}", reason=reason or Reason.UNAVAILABLE
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineMissed(f"{what}: no answer in time" if not reason else message)
    if code is grpc.StatusCode.UNAUTHENTICATED or code is grpc.StatusCode.PERMISSION_DENIED:
        return Refused(message, reason or code.name)
    for cls, known in _CODES:
        if known is code and cls is not BanyanError:
            return cls(message, reason=reason)
    return BanyanError(f"{what}: {code.name}: {message}", reason or code.name)


def _fitting(message: str) -> str:
    """Return a message, or its first and last parts, as a status has room for."""
    most = _MOST
    while _carried(text := cut(message, most)) > _MOST:
        most = most * 3 // 4
    return text


def _carried(message: str) -> int:
    """Return the bytes that a message takes: as a header, escaped, and in base64 in the details."""
    data = message.encode()
    escaped = sum(byte == 0x25 or not 0x20 <= byte <= 0x7E for byte in data)
    return len(data) + 2 * escaped + len(data) * 4 // 3


def _reason(error: grpc.RpcError) -> str | None:
    try:
        status = rpc_status.from_call(cast(grpc.Call, error))
    except ValueError:  # its details are another status than its code and message
        return None
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
            return str(info.reason)
    return None
