"""The port of opened environments to runs and their trees."""

from typing import Protocol

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2


class Runs(Protocol):
    """Runs and trees of the treestore."""

    async def read_run(self, run_id: str) -> rs.Run:
        """Return a run, by its id or a unique prefix. Raises NotFound."""
        ...

    async def read_tree(self, tree_id: bytes) -> tree_pb2.TreeSpec:
        """Return the spec of a tree. Raises NotFound."""
        ...
