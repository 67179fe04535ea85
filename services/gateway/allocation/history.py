"""Statistics of the training rows, folded from the store's facts. Pure.

The same facts in any number of parts give the same statistics, so a new gateway knows what its
predecessor knew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from banyan.plugins import KEPT_GROUPS, KEPT_SOLVED, NO_STATS, GroupFacts, RowStats


@dataclass
class History:
    """Statistics by training row. `right`: rewards of at least this count as successes."""

    right: float = 0.5
    _stats: dict[int, RowStats] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)  # of groups without outcome, by ordinal
    _solved: dict[int, None] = field(default_factory=dict)  # rows with an answer, the newest last

    @property
    def stats(self) -> Mapping[int, RowStats]:
        """Statistics of the rows that a group was opened for."""
        return MappingProxyType(self._stats)

    def record_allocation(self, ordinal: int, row: int) -> None:
        """Record the row of a group. Ordinals come in order."""
        old = self._stats.get(row, NO_STATS)
        self._stats[row] = replace(old, opened=old.opened + 1, newest=ordinal)
        self._rows[ordinal] = row

    def record_outcome(
        self,
        ordinal: int,
        batch: int,
        rewards: Iterable[float],
        lengths: Iterable[int],
        solved: str = "",
    ) -> None:
        """Record that a batch took a group or dropped it.

        Batches come in order. `solved`: a successful answer.
        """
        row = self._rows.pop(ordinal)
        facts = GroupFacts(ordinal, row, batch, tuple(rewards), tuple(lengths))
        old = self._stats[row]
        self._stats[row] = replace(
            old,
            closed=old.closed + 1,
            groups=(*old.groups, facts)[-KEPT_GROUPS:],
            longest_success=self._longest(old, facts),
            solved=solved or old.solved,
        )
        if solved:
            self._keep(row)

    def _keep(self, row: int) -> None:
        """Keep answers of the newest rows only: there may be many rows, and answers are long."""
        self._solved.pop(row, None)
        self._solved[row] = None
        if len(self._solved) > KEPT_SOLVED:
            oldest = next(iter(self._solved))
            del self._solved[oldest]
            self._stats[oldest] = replace(self._stats[oldest], solved="")

    def _longest(self, old: RowStats, facts: GroupFacts) -> int | None:
        right = [
            length
            for reward, length in zip(facts.rewards, facts.lengths, strict=True)
            if reward >= self.right
        ]
        if old.longest_success is not None:
            right.append(old.longest_success)
        return max(right, default=None)
