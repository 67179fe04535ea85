"""The ports of the verifier: the store that it reads, the publisher that it writes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from banyan.v1 import events_pb2, treestore_service_pb2
from services.verifier.sandbox.worker import ScorerSpec

Transcript = treestore_service_pb2.LeafTranscript
Group = treestore_service_pb2.ReadGroupResponse


@dataclass(frozen=True, slots=True)
class TreeStanding:
    """The standing of a tree.

    claim_epoch: epoch of the claim in force.
    over: the tree takes no more scores.
    """

    claim_epoch: int
    over: bool


class Store(Protocol):
    """The treestore, as the verifier reads it.

    Every call has a deadline, and raises TemporaryError once it has passed.
    """

    async def read_leaves(
        self, leaves: Sequence[events_pb2.LeafFinished], deadline_s: float
    ) -> tuple[list[Transcript], int]:
        """Return transcripts of the leaves that the store accepted, and the number of leaves at the
        end that one answer has no room for.

        Wait for the others until the deadline.
        """
        ...

    async def standing(self, tree_id: bytes) -> TreeStanding | None:
        """Return the standing of a tree; None if the store does not know it."""
        ...

    async def read_group(self, tree_id: bytes, claim_epoch: int, deadline_s: float) -> Group:
        """Return the group of a tree whose growth ended under this claim.

        Wait for that end until the deadline.
        """
        ...

    async def scorers(self, run_id: str) -> Mapping[str, ScorerSpec]:
        """Return the scorers of a run's recipe by name."""
        ...


class Publisher(Protocol):
    """The destination of scores."""

    async def publish(self, scored: events_pb2.LeafScored, msg_id: str, traceparent: str) -> None:
        """Publish a score; return once the broker has acknowledged it."""
        ...
