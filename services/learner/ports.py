"""What the learner asks of the outside: the store, and a trigger that says look again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from banyan.v1 import events_pb2, runstore_service_pb2, tree_pb2
from services.learner.data.replay import Replayed, ReplayRequest
from services.learner.data.selection import Ready


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A committed batch: its groups, its trees in order of groups and indices, what it said of its advantages, and what it
    trained on again."""

    ordinal: int
    group_ids: tuple[str, ...]
    tree_ids: tuple[bytes, ...]
    summary: Mapping[str, Any]
    replayed: tuple[Replayed, ...] = ()
    set_aside: str = ""  # why it is not trained on


class Store(Protocol):
    """The tree store, as the learner of one run needs it. All calls raise BanyanError."""

    async def run(self) -> runstore_service_pb2.Run:
        """The run with its recipe and its held-out rows."""
        ...

    async def take_epoch(self, learner_id: str, checkpoint_step: int) -> tuple[int, int]:
        """The learner's epoch, and the ordinal of the next batch to commit."""
        ...

    async def ready(self, limit: int) -> tuple[list[Ready], int | None]:
        """Closed groups in order, and the ordinal of the oldest group that is still open."""
        ...

    async def trees(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        """Whole trees, in the order asked for."""
        ...

    async def replays(self, wanted: ReplayRequest) -> tuple[Replayed, ...]:
        """Trees of earlier batches to train on again. The same question has the same answer."""
        ...

    async def commit(
        self,
        ordinal: int,
        epoch: int,
        group_ids: Sequence[str],
        summary: Mapping[str, Any],
        replayed: Sequence[Replayed] = (),
    ) -> None:
        """Commits a batch. Raises Refused with STALE_EPOCH where a newer learner has taken over."""
        ...

    async def batch(self, ordinal: int) -> StoredBatch | None:
        """A committed batch."""
        ...

    async def note_failure(self, ordinal: int, epoch: int, cause: str) -> int:
        """Notes that this learner fails on a committed batch; how many have. The second has it set aside."""
        ...

    async def policies(self) -> list[runstore_service_pb2.StoredPolicy]:
        """All policies of the run, abandoned ones too, oldest first."""
        ...

    async def put_policy(self, policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        """Notes a policy; its event follows from the store's outbox."""
        ...


class Trigger(Protocol):
    """Says that something may have changed."""

    def clear(self) -> None:
        """What happened until now is seen by the look that follows."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Returns once something happened since the last `clear`, or after `timeout_s`."""
        ...
