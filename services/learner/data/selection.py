"""Which closed groups become the next batch. Pure.

Batches are full, and taken in order of the groups' ordinals. In deterministic mode nothing may be passed over: a batch
waits until every group before its last one is closed, dropped or consumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """A closed group that no batch has consumed."""

    group_id: str
    ordinal: int
    tree_ids: tuple[bytes, ...]


def assemble(
    ready: Sequence[Ready], oldest_open: int | None, batch_size: int, deterministic: bool
) -> list[Ready] | None:
    """The groups of the next batch, or None while there are not enough."""
    chosen = sorted((g for g in ready if g.tree_ids), key=lambda g: g.ordinal)[:batch_size]
    if len(chosen) < batch_size:
        return None
    if deterministic and oldest_open is not None and oldest_open < chosen[-1].ordinal:
        return None
    return chosen
