"""Connection of the synchronous client: channels, deadlines, repetitions."""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import grpc

from banyan.client import calls
from banyan.client.calls import Answer, Call
from banyan.runtime import secret as secret_module
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from banyan.wire.status import error_of


class Connection:
    """Channels to a treestore and, for commands, to a gateway. Ids may be unique prefixes.

    store: host:port of the treestore
    gateway: host:port of the gateway; empty for queries alone
    deadline_s: seconds that a call may take, its repetitions included
    secret: content of the file `secret` in the state folder of a running system
    """

    def __init__(
        self, store: str, gateway: str = "", deadline_s: float = 30.0, secret: str = ""
    ) -> None:
        self._deadline_s = deadline_s
        self._channels = [grpc.insecure_channel(store, options=calls.OPTIONS)]
        through = secret_module.channel(self._channels[0], secret)
        self._stubs: dict[str, Any] = {
            "trees": ts_grpc.TreeStoreServiceStub(through),
            "runs": rs_grpc.RunStoreServiceStub(through),
        }
        if gateway:
            self._channels.append(grpc.insecure_channel(gateway, options=calls.OPTIONS))
            self._stubs["gateway"] = gw_grpc.GatewayServiceStub(
                secret_module.channel(self._channels[-1], secret)
            )

    def __enter__(self) -> Self:
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

    def _method(self, call: Call[Any]) -> Any:
        if call.service not in self._stubs:
            raise calls.gateway_missing()
        return getattr(self._stubs[call.service], call.method)

    def _call(self, call: Call[Answer]) -> Answer:
        method, end = self._method(call), time.monotonic() + self._deadline_s
        pause_s = calls.FIRST_PAUSE_S
        while True:
            left = max(0.001, end - time.monotonic())
            try:
                return call.read(method(call.request, timeout=left, wait_for_ready=True))
            except grpc.RpcError as error:
                failure = error_of(error, calls.named(call))
                if not calls.repeated(call, failure) or time.monotonic() + pause_s > end:
                    raise failure from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, calls.LONGEST_PAUSE_S)

    def _stream(self, call: Call[Answer], deadline_s: float) -> Iterator[Answer]:
        method = self._method(call)
        try:
            for response in method(call.request, timeout=deadline_s, wait_for_ready=True):
                yield call.read(response)
        except grpc.RpcError as error:
            raise error_of(error, calls.named(call)) from None
