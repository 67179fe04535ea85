"""A store and gateway that answer as a test says, over real gRPC."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from banyan.errors import BanyanError
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from banyan.wire.status import status_of

Answer = Callable[[Any, grpc.ServicerContext], Any]


class Stub(
    gw_grpc.GatewayServiceServicer,
    rs_grpc.RunStoreServiceServicer,
    ts_grpc.TreeStoreServiceServicer,
):
    """Servicer of all three services; `answers` by name of the method."""

    def __init__(self, **answers: Answer) -> None:
        for name, answer in answers.items():
            setattr(self, name, answer)


def failing(error: BanyanError, context: grpc.ServicerContext) -> None:
    """End a call with the status of an error."""
    context.abort_with_status(status_of(error))


@contextlib.contextmanager
def served(stub: Stub) -> Iterator[str]:
    """Yield the address of a server."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    gw_grpc.add_GatewayServiceServicer_to_server(stub, server)
    rs_grpc.add_RunStoreServiceServicer_to_server(stub, server)
    ts_grpc.add_TreeStoreServiceServicer_to_server(stub, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(10)


class Wire:
    """A connection to a server that falls silent when `cut` is set: no goodbye, no answer."""

    def __init__(self, target: str) -> None:
        self.cut = threading.Event()
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more."""
        self._server.close()

    def _accept(self) -> None:
        host, _, port = self._target.partition(":")
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection((host, int(port)))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if not self.cut.is_set():
                    other.sendall(data)
