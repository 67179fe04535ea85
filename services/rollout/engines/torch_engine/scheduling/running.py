"""The branches that run, with their pages, and those that are paused.

Pages are handed out as branches grow. Where kv_tokens leaves none, the branch that began last is paused: its pages go to the
others, and it waits with all that it has sampled. It goes on from there once it fits, by a prefill of its path: no token is
drawn twice. The branch that began first is never paused for another one.
"""

from collections.abc import Iterable, Sequence

import torch

from banyan.segment import IntTokens
from services.rollout.engines.port import Key, Request
from services.rollout.engines.torch_engine.kv.kv_budget import Memory
from services.rollout.engines.torch_engine.scheduling.branches import RunningBranch


class Running:
    """Rows, and paused rows by key."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._begun = memory, 0
        self.rows: list[RunningBranch] = []
        self.paused: dict[Key, RunningBranch] = {}

    @property
    def tables(self) -> list[list[int]]:
        """The pages of each row."""
        return [row.pages for row in self.rows]

    def begun(self, row: RunningBranch) -> RunningBranch:
        """A row that is to begin; the one that was paused under its key, if there is one, with its prefix computed again."""
        if (before := self.paused.pop(row.request.key, None)) is not None:
            before.written = row.written
            return before
        row.since = self._begun
        self._begun += 1
        return row

    def share(
        self,
        rows: Sequence[RunningBranch],
        prefix_P: IntTokens,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Keeps a prefix, whose KV is in the first tokens of a slot, and makes rows attend to it where it is kept."""
        trunk = self._memory.hold(
            prefix_P, keys[:, :, : len(prefix_P)], values[:, :, : len(prefix_P)]
        )
        for row in rows:
            row.trunk = trunk
            trunk.pin(1)

    def copy(
        self,
        rows: Sequence[RunningBranch],
        prefix_P: IntTokens,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Gives each row a copy of a prefix, whose KV is in the first tokens of a slot, and keeps one if there is room."""
        keys, values = keys[:, :, : len(prefix_P)], values[:, :, : len(prefix_P)]
        for row in rows:
            self._memory.pages.take(row.pages, len(prefix_P))
            self._memory.pages.write(row.pages, keys, values)
        self._memory.keep(prefix_P, keys, values)

    def provide(self, pages: int, anyway: bool) -> bool:
        """Makes so many pages free besides those that rows need for their next token; False where there is no room."""
        pool = self._memory.pages
        missing = sum(pool.of(row.own + 1) - len(row.pages) for row in self.rows)
        return self._memory.provide(missing + pages, self.tables, anyway)

    def grow(self) -> None:
        """Gives each row the page of its next token, shortest first; they were provided."""
        self.rows.sort(key=lambda row: row.own)
        for row in self.rows:
            self._memory.pages.take(row.pages, row.own + 1)

    def pause(self) -> Request:
        """Pauses the row that began last; what is to be sampled of it still."""
        row = max(self.rows, key=lambda row: row.since)
        self.remove([row])
        self.paused[row.request.key] = row
        return row.rest

    def remove(self, gone: Iterable[RunningBranch]) -> None:
        """Takes rows out, and back what they hold."""
        names = set()
        for row in gone:
            names.add(id(row))
            self._memory.pages.give(row.pages)
            if row.trunk is not None:
                row.trunk.pin(-1)
                row.trunk = None
        self.rows = [row for row in self.rows if id(row) not in names]

    def cut(self) -> list[RunningBranch]:
        """Takes all out, also those that are paused."""
        out = [*self.rows, *self.paused.values()]
        self.remove(self.rows)
        self.paused.clear()
        return out
