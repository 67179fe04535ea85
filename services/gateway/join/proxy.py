"""The proxy for joined nodes: passes a few methods of store, verifier and learner on as bytes.

docs/protocol.md, Rights, has the list.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio

from banyan.errors import InvalidInput, Refused
from banyan.reasons import Reason
from banyan.v1 import gateway_service_pb2 as pb
from services.chassis.rpc import rpc
from services.gateway.domain.ports import Store
from services.gateway.join import rpc_allowlist, slots
from services.gateway.join.admission import Admission, TokenVerifier
from services.gateway.join.rpc_allowlist import (
    ACT,
    ACT_REQUEST,
    FETCH_WEIGHTS,
    FETCH_WEIGHTS_REQUEST,
    JOIN_SWARM,
    PUT_BLOB,
    PUT_BLOB_REQUEST,
    STORE_METHODS,
    STREAM_CLAIMED,
    STREAM_CLAIMED_REQUEST,
)
from services.gateway.join.slots import Slots

_DEADLINE_S = 60.0  # for callers that set none
_MOST_S = 180.0  # longer than the store ever waits; a call occupies one of few slots there
_MOST_LEARNERS = 16  # channels to learners, of runs that came and went

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class Proxy(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Handler of every method on the join port."""

    def __init__(
        self,
        tokens: TokenVerifier,
        admission: Admission,
        store: Store,
        *,
        upstream: grpc.aio.Channel,
        verifier: grpc.aio.Channel,
        secret: str,
    ) -> None:
        """Keep `secret`, which opens the ports of learners; the channels send it by themselves."""
        self._tokens, self._admission, self._store = tokens, admission, store
        self._upstream, self._verifier, self._secret = upstream, verifier, secret
        self._learners: dict[str, grpc.aio.Channel] = {}
        self._calls = Slots(slots.CALLS, "calls")
        self._uploads = Slots(slots.UPLOADS, "uploads")
        self._actions = Slots(slots.ACTIONS, "actions")

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method
        if method == JOIN_SWARM:
            return grpc.unary_unary_rpc_method_handler(self._join)
        if method in STORE_METHODS:
            return grpc.unary_unary_rpc_method_handler(self._to_store(method))
        if method == PUT_BLOB:
            return grpc.stream_unary_rpc_method_handler(self._put_blob)
        if method == STREAM_CLAIMED:
            return grpc.unary_stream_rpc_method_handler(self._stream_claimed)
        if method == ACT:
            return grpc.unary_unary_rpc_method_handler(self._act)
        if method == FETCH_WEIGHTS:
            return grpc.unary_stream_rpc_method_handler(self._fetch_weights)
        if method.startswith("/banyan."):
            return grpc.unary_unary_rpc_method_handler(self._forbid(method))
        return None

    async def _admit(self, context: Context) -> tuple[str, str]:
        """Return the caller's run and node.

        Raise Refused, which the server turns into UNAUTHENTICATED.
        """
        return await self._tokens.node_of(context.invocation_metadata() or ())

    def _forbid(self, method: str) -> Callable[..., Awaitable[bytes]]:
        async def forbidden(request: bytes, context: Context) -> bytes:
            raise Refused(f"joined nodes may not call {method}", rpc_allowlist.FORBIDDEN)

        return forbidden

    async def _join(self, request: bytes, context: Context) -> bytes:
        run_id = await self._tokens.run_of(context.invocation_metadata() or ())
        message = rpc_allowlist.parse(pb.JoinSwarmRequest, request)
        return (await self._admission.admit(run_id, message)).SerializeToString()

    def _to_store(self, method: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
        call = cast(Any, self._upstream).unary_unary(method)

        async def passed_on(request: bytes, context: Context) -> bytes:
            run_id, node_id = await self._admit(context)
            rpc_allowlist.check(method, request, run_id, node_id)
            with self._calls.slot(run_id, node_id):
                metadata = ((rpc.RUN_KEY, run_id),)
                try:
                    return bytes(await call(request, timeout=_at_most(context), metadata=metadata))
                except grpc.aio.AioRpcError as error:
                    await _pass_on(error, context)
                    raise

        return passed_on

    async def _put_blob(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        run_id, node_id = await self._admit(context)
        with self._uploads.slot(run_id, node_id):
            return await self._passed_blob(requests, context, run_id)

    async def _passed_blob(
        self, requests: AsyncIterator[bytes], context: Context, run_id: str
    ) -> bytes:
        call = cast(Any, self._upstream).stream_unary(PUT_BLOB)
        wrong: list[InvalidInput] = []
        try:
            pieces = _pieces(requests, wrong)
            answer = await call(
                pieces, timeout=_at_most(context), metadata=((rpc.RUN_KEY, run_id),)
            )
            if not wrong:
                return bytes(answer)
        except grpc.aio.AioRpcError as error:
            if not wrong:
                await _pass_on(error, context)
        raise wrong[0]

    async def _stream_claimed(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        run_id, node_id = await self._admit(context)
        rpc_allowlist.parse(STREAM_CLAIMED_REQUEST, request)
        call = cast(Any, self._upstream).unary_stream(STREAM_CLAIMED)
        metadata = ((rpc.RUN_KEY, run_id),)
        with self._calls.slot(run_id, node_id):
            try:
                async for part in call(request, timeout=_time_left(context), metadata=metadata):
                    yield part
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)

    async def _act(self, request: bytes, context: Context) -> bytes:
        """Have an action answered. The store, which the verifier asks in the caller's name, refuses
        trees of another run and claims of another node.
        """
        run_id, node_id = await self._admit(context)
        rpc_allowlist.parse(ACT_REQUEST, request)
        call = cast(Any, self._verifier).unary_unary(ACT)
        metadata = ((rpc.RUN_KEY, run_id), (rpc.NODE_KEY, node_id))
        with self._actions.slot(run_id, node_id):
            try:
                return bytes(await call(request, timeout=_at_most(context), metadata=metadata))
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)
                raise

    async def _fetch_weights(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        run_id, node_id = await self._admit(context)
        rpc_allowlist.parse(FETCH_WEIGHTS_REQUEST, request)
        call = cast(Any, await self._learner(run_id)).unary_stream(FETCH_WEIGHTS)
        with self._calls.slot(run_id, node_id):
            try:
                async for piece in call(request, timeout=_time_left(context)):
                    yield piece
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)

    async def _learner(self, run_id: str) -> grpc.aio.Channel:
        policies = await self._store.read_policies(run_id, newest=1)
        if not policies:
            raise Refused(
                f"run {run_id} has published no weights yet; try again when it has",
                reason=Reason.NO_POLICY,
            )
        # The learner that published last serves the older versions too.
        address = policies[-1].published.address
        if address not in self._learners:
            await self._close_learners()
            self._learners[address] = rpc.channel(address, secret=self._secret)
        return self._learners[address]

    async def _close_learners(self) -> None:
        if len(self._learners) >= _MOST_LEARNERS:
            await asyncio.gather(*(c.close(None) for c in self._learners.values()))
            self._learners.clear()

    async def close(self) -> None:
        """Close the channels to learners."""
        await asyncio.gather(*(channel.close(None) for channel in self._learners.values()))


async def _pieces(
    requests: AsyncIterator[bytes], wrong: list[InvalidInput]
) -> AsyncIterator[bytes]:
    """Yield the stream up to the first invalid piece, and append its error to `wrong`.

    An error that is raised here would be lost in the channel.
    """
    async for piece in requests:
        try:
            rpc_allowlist.parse(PUT_BLOB_REQUEST, piece)
        except InvalidInput as error:
            wrong.append(error)
            return
        yield piece


async def _pass_on(error: grpc.aio.AioRpcError, context: Context) -> None:
    """End the call with the status of the call behind it."""
    await context.abort(
        error.code(), error.details() or "", tuple(cast(Any, error.trailing_metadata()))
    )


def _time_left(context: Context) -> float:
    left = context.time_remaining()
    return _DEADLINE_S if left is None else float(left)


def _at_most(context: Context) -> float:
    return min(_time_left(context), _MOST_S)
