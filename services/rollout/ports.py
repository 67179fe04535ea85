"""What a node asks of the outside: the store, the log, and a queue of assignments."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from google.protobuf.message import Message

from banyan.v1 import runstore_service_pb2, tree_pb2
from services.rollout.growth.policy_selection import Published


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim on a tree, with the tree so far, and the traceparent of its first claim. Epoch 0: there is nothing to grow."""

    epoch: int
    tree: tree_pb2.Tree
    first: str = ""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What the store has of a claim's segments."""

    missing: frozenset[bytes]
    grown: bool
    refused: tuple[str, ...]  # reasons


@dataclass(frozen=True, slots=True)
class Awaited:
    """All scores of a tree, and the room that control gave it, if it did."""

    scores: Sequence[tree_pb2.ScoredLeaf]
    room: tree_pb2.TreeRoom | None = None


class Store(Protocol):
    """The tree store, as a node of one run needs it. All calls raise BanyanError."""

    async def run(self) -> runstore_service_pb2.Run:
        """The run with its recipe."""
        ...

    async def policies(self) -> list[Published]:
        """Policies that are not abandoned, oldest first."""
        ...

    async def claim(self, tree_id: bytes, ticket: int, traceparent: str = "") -> Claim:
        """Takes a tree, or resumes it. `traceparent`: of the span of this claim."""
        ...

    async def renew(self, tree_id: bytes, epoch: int) -> None:
        """Keeps a claim. Raises Refused with STALE_EPOCH or NOT_GROWING."""
        ...

    async def give_back(self, tree_id: bytes, epoch: int, reason: str) -> None:
        """Ends a claim without an attempt being counted."""
        ...

    async def ingested(
        self, tree_id: bytes, epoch: int, segments: Sequence[bytes], deadline_s: float
    ) -> Ingested:
        """Waits until segments and TreeGrown are stored, or the deadline."""
        ...

    async def awaited(
        self, tree_id: bytes, epoch: int, known: int, round: int | None, deadline_s: float
    ) -> Awaited:
        """What came for a tree, once there are more scores than `known`, a room of a later round than `round` (None: rooms
        do not count), or the deadline has passed."""
        ...

    async def put_blob(self, tree_id: bytes, epoch: int, data: bytes) -> None:
        """Gives the store a segment that is too large for a message."""
        ...

    async def present(self, trees: int, leaving: bool = False) -> None:
        """Notes that this node is there, or that it leaves."""
        ...


class Source(Protocol):
    """Where a node has the weights of policies from."""

    def held(self, published: Published) -> AbstractAsyncContextManager[Path]:
        """Manifest of a policy's weights, there to be taken while it is held. Raises BanyanError; another try may help."""
        ...


class Log(Protocol):
    """Where events go."""

    async def publish(
        self,
        subject: str,
        message: Message,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        """Publishes and waits for the ack."""
        ...


class Delivery(Protocol):
    """One delivery of an assignment."""

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
        """Up to `batch` assignments; none after `timeout_s`."""
        ...

    async def close(self) -> None:
        """Asks for no more, and gives back what was not fetched."""
        ...
