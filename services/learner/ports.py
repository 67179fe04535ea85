"""The needs of the learner's loop from outside: the store, and a trigger that wakes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from banyan.v1 import events_pb2, runstore_service_pb2, tree_pb2
from services.learner.data.engine_load import Loads
from services.learner.data.replay import Replayed, ReplayRequest
from services.learner.data.selection import Ready


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch, committed or about to be.

    ordinal: its number in the run
    group_ids: its groups
    tree_ids: its trees, in order of groups and indices
    summary: its record of advantages, of leaves that were too old, and of metrics
    replayed: trees of earlier batches that it trains on again
    set_aside: reason for which it is not trained on; empty if it is
    """

    ordinal: int
    group_ids: tuple[str, ...]
    tree_ids: tuple[bytes, ...]
    summary: Mapping[str, Any]
    replayed: tuple[Replayed, ...] = ()
    set_aside: str = ""


class Store(Protocol):
    """The tree store, as the learner of one run needs it. All calls raise BanyanError."""

    async def run(self) -> runstore_service_pb2.Run:
        """Return the run with its recipe and its held-out rows."""
        ...

    async def take_epoch(self, learner_id: str, checkpoint_step: int) -> tuple[int, int]:
        """Take a new learner epoch; return it and the ordinal of the next batch to commit."""
        ...

    async def ready(self, limit: int) -> tuple[list[Ready], int | None]:
        """Return closed groups in order, and the ordinal of the oldest open group."""
        ...

    async def trees(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        """Return whole trees, in the order of their ids."""
        ...

    async def replays(self, wanted: ReplayRequest) -> tuple[Replayed, ...]:
        """Return trees of earlier batches to train on again; a repeated call gives the same."""
        ...

    async def commit(
        self,
        ordinal: int,
        epoch: int,
        group_ids: Sequence[str],
        summary: Mapping[str, Any],
        replayed: Sequence[Replayed] = (),
    ) -> None:
        """Commit a batch. Raises Refused with STALE_EPOCH once a newer learner has taken over."""
        ...

    async def batch(self, ordinal: int) -> StoredBatch | None:
        """Return a committed batch."""
        ...

    async def note_failure(self, ordinal: int, epoch: int, cause: str) -> int:
        """Record that this learner fails on a committed batch; return the number of failures.

        The second failure sets the batch aside.
        """
        ...

    async def policies(self) -> list[runstore_service_pb2.StoredPolicy]:
        """Return all policies of the run, abandoned ones too, oldest first."""
        ...

    async def engine_loads(self) -> Loads:
        """Return what the engines of the run's nodes have decoded, by node."""
        ...

    async def put_policy(self, policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        """Record a policy; its event follows from the store's outbox."""
        ...


class Trigger(Protocol):
    """A wake-up: something may have changed."""

    def clear(self) -> None:
        """Forget earlier triggers; the caller asks the store next."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return once triggered since the last `clear`, or after `timeout_s`."""
        ...
