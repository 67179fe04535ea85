"""Runs and trees over gRPC."""

import grpc.aio

from banyan.v1 import (
    runstore_service_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2,
    treestore_service_pb2_grpc,
)
from services.chassis.rpc import rpc


class GrpcRuns:
    """Reads from the treestore."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._trees = treestore_service_pb2_grpc.TreeStoreServiceStub(channel)
        self._runs = runstore_service_pb2_grpc.RunStoreServiceStub(channel)

    async def read_run(self, run_id: str) -> runstore_service_pb2.Run:
        """Return a run, by its id or a unique prefix. Raises NotFound."""
        request = runstore_service_pb2.ReadRunRequest(run_id=run_id)
        run: runstore_service_pb2.Run = (await rpc.call(self._runs.ReadRun, request)).run
        return run

    async def read_tree(self, tree_id: bytes) -> tree_pb2.TreeSpec:
        """Return the spec of a tree. Raises NotFound."""
        request = treestore_service_pb2.GetTreeRequest(tree_id=tree_id)
        spec: tree_pb2.TreeSpec = (await rpc.call(self._trees.GetTree, request)).tree.spec
        return spec
