"""What a joined node may ask of the store and of the learner: a short list of methods, passed on as bytes (PROTOCOL 8)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio

from banyan.errors import Refused
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1 import runstore_service_pb2 as runs
from services.chassis import rpc
from services.gateway.join.nodes import NO_TOKEN, Admission, Door
from services.gateway.ports import Store

_TREES, _RUNS, _LEARNER = "/banyan.v1.TreeStoreService/", "/banyan.v1.RunStoreService/", "/banyan.v1.LearnerService/"
TO_STORE = frozenset(_TREES + m for m in ("ClaimTree", "RenewClaim", "ReturnTree", "AwaitIngested")) | frozenset(
    _RUNS + m for m in ("ReadRun", "ReadPolicies", "PutMember")
)
BLOBS = _TREES + "PutBlob"
TO_LEARNER = _LEARNER + "FetchWeights"
JOIN = "/banyan.v1.GatewayService/JoinSwarm"
# Whose run a request is about; a token opens one run only.
_ABOUT: dict[str, Callable[[bytes], str]] = {
    _RUNS + "ReadRun": lambda data: runs.ReadRunRequest.FromString(data).run_id,
    _RUNS + "ReadPolicies": lambda data: runs.ReadPoliciesRequest.FromString(data).run_id,
    _RUNS + "PutMember": lambda data: runs.PutMemberRequest.FromString(data).member.run_id,
}
_DEADLINE_S = 60.0  # for callers who name none

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class Proxy(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Answers every method that comes in on the join port."""

    def __init__(self, door: Door, admission: Admission, store: Store, upstream: grpc.aio.Channel) -> None:
        self._door, self._admission, self._store, self._upstream = door, admission, store, upstream
        self._learners: dict[str, grpc.aio.Channel] = {}

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method
        if method == JOIN:
            return grpc.unary_unary_rpc_method_handler(self._guarded(self._join))
        if method in TO_STORE:
            return grpc.unary_unary_rpc_method_handler(self._guarded(self._to_store(method)))
        if method == BLOBS:
            return grpc.stream_unary_rpc_method_handler(self._put_blob)
        if method == TO_LEARNER:
            return grpc.unary_stream_rpc_method_handler(self._fetch)
        if method.startswith("/banyan."):
            return grpc.unary_unary_rpc_method_handler(self._forbid(method))
        return None

    def _guarded(self, handle: Callable[[bytes, Context, str], Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
        async def guarded(request: bytes, context: Context) -> bytes:
            return await handle(request, context, await self._admit(context))

        return guarded

    async def _admit(self, context: Context) -> str:
        try:
            return await self._door.run_of(context.invocation_metadata() or ())
        except Refused as error:
            code = grpc.StatusCode.UNAUTHENTICATED if error.reason == NO_TOKEN else grpc.StatusCode.PERMISSION_DENIED
            await context.abort(code, str(error))
            raise  # abort never returns

    def _forbid(self, method: str) -> Callable[..., Awaitable[bytes]]:
        async def forbidden(request: bytes, context: Context) -> bytes:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"joined nodes may not call {method}")
            raise AssertionError("abort never returns")

        return forbidden

    async def _join(self, request: bytes, context: Context, run_id: str) -> bytes:
        answer = await self._admission.admit(run_id, pb.JoinSwarmRequest.FromString(request))
        return answer.SerializeToString()

    def _to_store(self, method: str) -> Callable[[bytes, Context, str], Awaitable[bytes]]:
        call = cast(Any, self._upstream).unary_unary(method)

        async def passed_on(request: bytes, context: Context, run_id: str) -> bytes:
            asked = _ABOUT[method](request) if method in _ABOUT else run_id
            if asked != run_id:
                message = f"this token opens run {run_id}, not {asked!r}"
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, message)
            try:
                return bytes(await call(request, timeout=_time_left(context), metadata=((rpc.RUN_KEY, run_id),)))
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(cast(Any, error.trailing_metadata())))
                raise

        return passed_on

    async def _put_blob(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        run_id = await self._admit(context)
        call = cast(Any, self._upstream).stream_unary(BLOBS)
        try:
            return bytes(await call(requests, timeout=_time_left(context), metadata=((rpc.RUN_KEY, run_id),)))
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(cast(Any, error.trailing_metadata())))
            raise

    async def _fetch(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        run_id = await self._admit(context)
        call = cast(Any, await self._learner(run_id)).unary_stream(TO_LEARNER)
        try:
            async for piece in call(request, timeout=_time_left(context)):
                yield piece
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(cast(Any, error.trailing_metadata())))

    async def _learner(self, run_id: str) -> grpc.aio.Channel:
        policies = await self._store.read_policies(run_id)
        if not policies:
            raise Refused(f"run {run_id} has published no weights yet; try again when it has", reason="NO_POLICY")
        address = policies[-1].published.address  # whoever published last serves the older versions too
        if address not in self._learners:
            await self._close_learners()
            self._learners[address] = rpc.channel(address)
        return self._learners[address]

    async def _close_learners(self) -> None:
        if len(self._learners) >= 16:  # learners that came and went
            await asyncio.gather(*(c.close(None) for c in self._learners.values()))
            self._learners.clear()

    async def close(self) -> None:
        """Closes the channels to learners."""
        await asyncio.gather(*(channel.close(None) for channel in self._learners.values()))


def _time_left(context: Context) -> float:
    left = context.time_remaining()
    return _DEADLINE_S if left is None else float(left)
