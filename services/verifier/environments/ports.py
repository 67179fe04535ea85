"""The ports of environments: to the store, and to what runs code."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from banyan.environments.hosting import HostedResult, HostedTask
from banyan.programs.session import SessionResult, Task
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.verifier.environments.asked import Caller

Begin = Callable[[], Awaitable[str]]


class Sessions(Protocol):
    """Runs of code in sessions."""

    async def do(self, task: Task) -> SessionResult:
        """Do a run; never raises for what the code does."""
        ...


class Hosts(Protocol):
    """Steps of users' classes."""

    async def do(self, task: HostedTask, begin: Begin | None = None) -> HostedResult:
        """Do a step; what the action causes is a result.

        begin: called when all is ready, for the key of a step that changes something outside
        """
        ...


class Store(Protocol):
    """The treestore, as environments read it."""

    async def read_action(
        self, tree_id: bytes, epoch: int, action: bytes, deadline_s: float, caller: Caller
    ) -> ts.ActionWay:
        """Return the way to an action; empty if it is not stored at the deadline.

        Raises NotFound, or Refused if the claim is not in force, or not that of a joined caller.
        """
        ...

    async def begin_effect(self, tree_id: bytes, epoch: int, action: bytes, tool: str) -> bool:
        """Note durably that a tool is about to change something outside for an action.

        Returns False if that was noted before. Raises Refused if the claim is not in force.
        """
        ...

    async def end_effect(
        self, tree_id: bytes, action: bytes, receipt: tree_pb2.Receipt, text: str
    ) -> None:
        """Keep the answer to such an action."""
        ...
