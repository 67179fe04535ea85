"""Between Banyan's errors and gRPC's statuses: canonical code, message, and ErrorInfo with the machine-readable reason."""

from typing import cast

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

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
_CODES: tuple[tuple[type[BanyanError], grpc.StatusCode], ...] = (
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (NotReady, grpc.StatusCode.UNIMPLEMENTED),
    (Refused, grpc.StatusCode.FAILED_PRECONDITION),
    (DeadlineMissed, grpc.StatusCode.DEADLINE_EXCEEDED),
    (TemporaryError, grpc.StatusCode.UNAVAILABLE),
    (BanyanError, grpc.StatusCode.INTERNAL),
)
# Reasons of Refused that say who may come in, not what is wrong.
_DOORS: dict[str, grpc.StatusCode] = {
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
}


def status_of(error: BanyanError) -> grpc.Status:
    """The gRPC status of an error: canonical code, message, ErrorInfo with its reason."""
    code = _DOORS.get(error.reason) or next(code for cls, code in _CODES if isinstance(error, cls))
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    number = code_pb2.Code.Value(code.name)
    return rpc_status.to_status(
        status_pb2.Status(code=number, message=str(error), details=[detail])
    )


def error_of(error: grpc.RpcError, what: str) -> BanyanError:
    """The BanyanError that a failed call means."""
    code, message = error.code(), error.details() or ""
    reason = _reason(error)
    if code is grpc.StatusCode.UNAVAILABLE:
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


def _reason(error: grpc.RpcError) -> str | None:
    status = rpc_status.from_call(cast(grpc.Call, error))
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
            return str(info.reason)
    return None
