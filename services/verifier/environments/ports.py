"""The port of environments to the store."""

from typing import Protocol

from banyan.programs.session import SessionResult, Task
from banyan.v1 import treestore_service_pb2 as ts


class Sessions(Protocol):
    """Runs of code in sessions."""

    async def do(self, task: Task) -> SessionResult:
        """Do a run; never raises for what the code does."""
        ...


class Store(Protocol):
    """The treestore, as environments read it."""

    async def read_action(
        self, tree_id: bytes, epoch: int, action: bytes, deadline_s: float
    ) -> ts.ReadActionResponse:
        """Return the way to an action; empty if it is not stored at the deadline.

        Raises NotFound, or Refused if the claim is not in force.
        """
        ...
