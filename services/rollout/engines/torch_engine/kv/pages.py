"""The page pool: KV of running rows in pages of a few tokens, so that a row holds what it has written and little more.

A row has a table: the numbers of its pages, in order. Two tensors per model, [layers, kv heads, pages x size, dim], so that
the tokens of a page lie side by side for each head. Memory is zeroed once: masked positions must be finite. Page 0 is
nobody's: rows that only fill a batch up are there, and tables are filled up with it.
"""

from collections.abc import Sequence

import torch

from services.rollout.engines.torch_engine.kv.kv_slots import KVShape


class Pages:
    """KV of `count` pages of `size` tokens."""

    def __init__(self, shape: KVShape, size: int, count: int = 1) -> None:
        self.shape, self.size, self.count = shape, size, count
        self.keys = shape.zeros(1, count * size, shape.key_dim)[:, 0]
        self.values = shape.zeros(1, count * size, shape.value_dim)[:, 0]
        self._free = list(range(count - 1, 0, -1))

    @property
    def tokens(self) -> int:
        """Tokens that fit, with page 0."""
        return self.count * self.size

    @property
    def free(self) -> int:
        """Pages that no row has."""
        return len(self._free)

    def of(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.size)

    def take(self, table: list[int], tokens: int) -> None:
        """Gives a row the pages that it lacks for its first `tokens` tokens; they must be free."""
        for _ in range(self.of(tokens) - len(table)):
            table.append(self._free.pop())

    def give(self, table: list[int]) -> None:
        """Takes all pages of a row back."""
        self._free += reversed(table)
        table.clear()

    def write(self, table: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Puts the first tokens of a row, [layers, kv heads, tokens, dim], into its pages."""
        places = self._places(table, keys.shape[2])
        self.keys.index_copy_(2, places, keys)
        self.values.index_copy_(2, places, values)

    def read(self, table: Sequence[int], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of the first `tokens` tokens of a row: keys and values [layers, kv heads, tokens, dim]."""
        places = self._places(table, tokens)
        return self.keys.index_select(2, places), self.values.index_select(2, places)

    def _places(self, table: Sequence[int], tokens: int) -> torch.Tensor:
        firsts = torch.tensor(table, device=self.shape.device, dtype=torch.long) * self.size
        return (firsts[:, None] + torch.arange(self.size, device=self.shape.device)).reshape(-1)[
            :tokens
        ]

    def resized(self, count: int, tables: Sequence[list[int]]) -> "Pages":
        """A pool of another size with what the rows of these tables have written. Their pages get other numbers."""
        new = Pages(self.shape, self.size, count)
        old = [page for table in tables for page in table]
        for table in tables:
            kept = len(table)
            table.clear()
            new.take(table, kept * self.size)
        if old:
            here, there = ([page for table in tables for page in table], old)
            into, source = (
                new._places(here, len(here) * self.size),
                self._places(there, len(there) * self.size),
            )
            for layer in range(self.shape.layers):  # one at a time, for what a copy takes besides
                new.keys[layer].index_copy_(1, into, self.keys[layer].index_select(1, source))
                new.values[layer].index_copy_(1, into, self.values[layer].index_select(1, source))
        return new
