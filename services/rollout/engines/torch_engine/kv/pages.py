"""The page pool: KV of running branches in pages of a few tokens.

A branch occupies little more than it has written. It has a table: the numbers of its pages, in
order. There are two tensors a model, [layers, kv heads, pages x size, dim], so that the tokens of a
page are adjacent for each head. Memory is zeroed once: masked positions must be finite. Page 0
belongs to no branch: rows that only pad a batch use it, and so does the padding of tables.
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
        """Capacity in tokens, page 0 included."""
        return self.count * self.size

    @property
    def free(self) -> int:
        """Number of pages in no table."""
        return len(self._free)

    def of(self, tokens: int) -> int:
        """Return the number of pages that so many tokens need."""
        return -(-tokens // self.size)

    def allocate(self, table: list[int], tokens: int) -> None:
        """Add to a table the pages that its first `tokens` tokens lack; they must be free."""
        for _ in range(self.of(tokens) - len(table)):
            table.append(self._free.pop())

    def release(self, table: list[int]) -> None:
        """Free all pages of a table."""
        self._free += reversed(table)
        table.clear()

    def write(self, table: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the first tokens of a branch, [layers, kv heads, tokens, dim], to its pages."""
        places = self._places(table, keys.shape[2])
        self.keys.index_copy_(2, places, keys)
        self.values.index_copy_(2, places, values)

    def read(self, table: Sequence[int], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of a branch's first keys and values, [layers, kv heads, tokens, dim]."""
        places = self._places(table, tokens)
        return self.keys.index_select(2, places), self.values.index_select(2, places)

    def _places(self, table: Sequence[int], tokens: int) -> torch.Tensor:
        firsts = torch.tensor(table, device=self.shape.device, dtype=torch.long) * self.size
        within = torch.arange(self.size, device=self.shape.device)
        return (firsts[:, None] + within).reshape(-1)[:tokens]

    def resized(self, count: int, tables: Sequence[list[int]]) -> "Pages":
        """Return a pool of another size with the contents of these tables, renumbered in place."""
        pool = Pages(self.shape, self.size, count)
        before = [page for table in tables for page in table]
        for table in tables:
            pages = len(table)
            table.clear()
            pool.allocate(table, pages * self.size)
        if before:
            after = [page for table in tables for page in table]
            source = self._places(before, len(before) * self.size)
            target = pool._places(after, len(after) * self.size)
            # Layer by layer, to bound the memory of the temporary copies.
            for layer in range(self.shape.layers):
                pool.keys[layer].index_copy_(1, target, self.keys[layer].index_select(1, source))
                values = self.values[layer].index_select(1, source)
                pool.values[layer].index_copy_(1, target, values)
        return pool
