"""Replay: which groups of earlier batches a batch trains on again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from banyan.draws import Draws


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group that a batch consumed, the newest of its row."""

    group_id: str
    ordinal: int
    row: bytes  # digest
    batch: int  # that consumed it
    rewards: tuple[float, ...]  # of its scored leaves


class Replay(Protocol):
    """Draws groups that a batch trains on again. Pure: the same groups, count and draws give the same groups."""

    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> Sequence[str]:
        """Ids of at most `count` groups, none twice. They come oldest first; `rng` is of the run's seed and the batch."""
        ...
