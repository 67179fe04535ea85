"""Replay: groups of earlier batches that a batch trains on again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from banyan.draws import Draws


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """Group that a batch consumed, the newest of its row.

    group_id: id of the group
    ordinal: position among the training groups
    row: digest of the row
    batch: batch that consumed it
    rewards: rewards of its scored leaves
    """

    group_id: str
    ordinal: int
    row: bytes
    batch: int
    rewards: tuple[float, ...]


class Replay(Protocol):
    """Rule that draws groups to train on again. Pure: equal arguments give equal groups."""

    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> Sequence[str]:
        """Return ids of at most `count` groups, none twice, oldest first.

        rng: draws with the run's seed and the batch
        """
        ...
