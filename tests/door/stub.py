"""A store and gateway that answer as a test says, over real gRPC."""

import contextlib
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
