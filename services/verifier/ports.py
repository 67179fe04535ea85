"""What the verifier needs from outside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from banyan.v1 import events_pb2, treestore_service_pb2
from services.verifier.sandbox.worker import ScorerSpec

Transcript = treestore_service_pb2.LeafTranscript
Group = treestore_service_pb2.ReadGroupResponse


@dataclass(frozen=True, slots=True)
class TreeStanding:
    """Where a tree stands: the claim in force, and whether it still takes scores."""

    claim_epoch: int
    over: bool


class Store(Protocol):
    """The treestore, as the verifier reads it. Every call has a deadline and raises TemporaryError when it runs out."""

    async def read_leaves(
        self, leaves: Sequence[events_pb2.LeafFinished], deadline_s: float
    ) -> list[Transcript]:
        """Transcripts of the leaves that the store accepted; waits for the others until the deadline."""
        ...

    async def standing(self, tree_id: bytes) -> TreeStanding | None:
        """Where a tree stands; None if the store does not know it."""
        ...

    async def read_group(self, tree_id: bytes, claim_epoch: int, deadline_s: float) -> Group:
        """The group of a tree whose growth ended under this claim; waits for that end until the deadline."""
        ...

    async def scorers(self, run_id: str) -> Mapping[str, ScorerSpec]:
        """The scorers of a run's recipe by name."""
        ...


class Publisher(Protocol):
    """Where scores go."""

    async def publish(self, scored: events_pb2.LeafScored, msg_id: str, traceparent: str) -> None:
        """Returns when the broker has it."""
        ...
