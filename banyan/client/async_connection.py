"""Connection of the asynchronous client: channels, deadlines, repetitions."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from banyan.client import calls
from banyan.client.calls import Answer, Call
from banyan.runtime import secret as secret_module
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from banyan.wire.status import error_of


class AsyncConnection:
    """Asynchronous channels to a treestore and, for commands, to a gateway.

    Make and use it within one running event loop. Ids may be unique prefixes.

    store: host:port of the treestore
    gateway: host:port of the gateway; empty for queries alone
    deadline_s: seconds that a call may take, its repetitions included
    secret: content of the file `secret` in the state folder of a running system
    """

    def __init__(
        self, store: str, gateway: str = "", deadline_s: float = 30.0, secret: str = ""
    ) -> None:
        self._deadline_s = deadline_s
        self._channels = [grpc.aio.insecure_channel(store, options=calls.OPTIONS)]
        self._metadata = ((secret_module.KEY, secret),) if secret else ()
        self._stubs: dict[str, Any] = {
            "trees": ts_grpc.TreeStoreServiceStub(self._channels[0]),
            "runs": rs_grpc.RunStoreServiceStub(self._channels[0]),
        }
        if gateway:
            self._channels.append(grpc.aio.insecure_channel(gateway, options=calls.OPTIONS))
            self._stubs["gateway"] = gw_grpc.GatewayServiceStub(self._channels[-1])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        for channel in self._channels:
            await channel.close(None)

    def _method(self, call: Call[Any]) -> Any:
        if call.service not in self._stubs:
            raise calls.gateway_missing()
        return getattr(self._stubs[call.service], call.method)

    async def _call(self, call: Call[Answer]) -> Answer:
        method, end = self._method(call), time.monotonic() + self._deadline_s
        pause_s = calls.FIRST_PAUSE_S
        while True:
            left = max(0.001, end - time.monotonic())
            try:
                return call.read(
                    await method(
                        call.request, timeout=left, wait_for_ready=True, metadata=self._metadata
                    )
                )
            except grpc.RpcError as error:
                failure = error_of(error, calls.named(call))
                if not calls.repeated(call, failure) or time.monotonic() + pause_s > end:
                    raise failure from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, calls.LONGEST_PAUSE_S)

    async def _stream(self, call: Call[Answer], deadline_s: float) -> AsyncIterator[Answer]:
        method = self._method(call)
        try:
            async for response in method(
                call.request, timeout=deadline_s, wait_for_ready=True, metadata=self._metadata
            ):
                yield call.read(response)
        except grpc.RpcError as error:
            raise error_of(error, calls.named(call)) from None
