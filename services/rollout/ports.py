"""Interfaces of a node to the outside: the store, the log, and a queue of assignments."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from google.protobuf.message import Message

from banyan.environments.endings import Ending
from banyan.v1 import runstore_service_pb2, tree_pb2
from services.rollout.growth.grants import BudgetGrant
from services.rollout.growth.policy_selection import Published
from services.rollout.growth.scores import LeafScore
from services.rollout.growth.segments import ToolAnswer


class Environments(Protocol):
    """The verifier, as it answers actions."""

    async def act(
        self, tree_id: bytes, epoch: int, action: bytes, *, call: str, deadline_s: float
    ) -> ToolAnswer | Ending:
        """Return the answer to an action; the same action has the same answer.

        It is an ending if the action gets none. Raise Refused if the claim is over, TemporaryError
        if it should be asked again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """Work that an engine has decoded since its node started.

    decoded: segments, summed over the steps of the model.
    slots: segments that could have decoded, summed over the same steps.
    policy_step: step of the policy that it has loaded; None before any.
    """

    decoded: int = 0
    slots: int = 0
    policy_step: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim on a tree.

    epoch: fencing epoch; 0 if there is nothing to grow.
    tree: the tree so far.
    first_traceparent: trace context of the tree's first claim.
    """

    epoch: int
    tree: tree_pb2.Tree
    first_traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Ingested:
    """The part of a claim's events that the store has.

    missing: ids of segments that it lacks.
    grown: whether it has the end of growth.
    refused: reasons of refused segments.
    """

    missing: frozenset[bytes]
    grown: bool
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Awaited:
    """The news of a tree that waits.

    scores: all its scores.
    grant: its newest growth budget, if control granted any.
    """

    scores: Sequence[LeafScore]
    grant: BudgetGrant | None = None


class Store(Protocol):
    """The tree store, for a node of one run. All calls raise BanyanError."""

    async def run(self) -> runstore_service_pb2.Run:
        """Return the run with its recipe."""
        ...

    async def policies(self) -> list[Published]:
        """Return the policies that are not abandoned, oldest first."""
        ...

    async def claim(self, tree_id: bytes, ticket: int, traceparent: str = "") -> Claim:
        """Claim a tree, to begin or to resume it.

        ticket: ticket of the assignment.
        traceparent: trace context of this claim.
        """
        ...

    async def renew(self, tree_id: bytes, epoch: int) -> None:
        """Renew a claim. Raises Refused with STALE_EPOCH or NOT_GROWING."""
        ...

    async def return_tree(self, tree_id: bytes, epoch: int, reason: str) -> None:
        """End a claim without an attempt being counted."""
        ...

    async def await_ingested(
        self, tree_id: bytes, epoch: int, segments: Sequence[bytes], deadline_s: float
    ) -> Ingested:
        """Wait until segments and the end of growth are stored, or until the deadline."""
        ...

    async def await_scores(
        self, tree_id: bytes, epoch: int, known: int, round: int | None, deadline_s: float
    ) -> Awaited:
        """Wait for news of a tree, or until the deadline.

        known: number of known scores; more of them are news.
        round: known round of the growth budget; a later one is news. None if budgets are not.
        """
        ...

    async def put_blob(self, tree_id: bytes, epoch: int, data: bytes) -> None:
        """Store a segment that is too large for a message."""
        ...

    async def present(self, trees: int, load: Load, leaving: bool = False) -> None:
        """Record that this node is there, or that it leaves.

        trees: number of trees that it has grown.
        load: what its engine has decoded.
        """
        ...


class Source(Protocol):
    """The source of a node's weights."""

    def held(self, published: Published) -> AbstractAsyncContextManager[Path]:
        """Provide the manifest of a policy's weights, which stay in place within the block.

        Raises BanyanError; another try may help.
        """
        ...


class Log(Protocol):
    """The log of events."""

    async def publish(
        self,
        subject: str,
        message: Message,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        """Publish a message and wait for the broker's acknowledgement."""
        ...


class Delivery(Protocol):
    """A delivery of an assignment."""

    @property
    def data(self) -> bytes: ...

    @property
    def traceparent(self) -> str: ...

    async def ack(self) -> None: ...

    async def nak(self, delay_s: float) -> None: ...

    async def in_progress(self) -> None: ...

    async def term(self) -> None: ...


class Assignments(Protocol):
    """The queue of assignments."""

    async def fetch(self, batch: int, timeout_s: float) -> Sequence[Delivery]:
        """Return up to `batch` assignments; none if none came within `timeout_s`."""
        ...

    async def close(self) -> None:
        """Ask for no more, and hand back what was not fetched."""
        ...
