"""A decode pass over pages: rows of similar length attend together, to their pages put side by side.

Models whose layers attend to just what they cache are handed nothing of it: their attention asks here, bucket by bucket.
For the others the pages of all rows are put together, as wide as the longest, before the model goes on with them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any

import torch
from transformers import Cache

from services.rollout.engines.torch_engine.kv.pages import Pages


@dataclass(frozen=True, slots=True)
class Cuts:
    """How rows are put into buckets. waste: tokens of others' lengths that the rows of a bucket may attend to in vain, about
    what a bucket more costs. multiple: pages that a bucket's width is a multiple of, so that shapes are few."""

    waste: int = 512
    multiple: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """KV [rows, kv heads, tokens, dim] of rows of a batch that no other row has, and the mask of what they see of it."""

    rows: slice
    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None


def cut(pages_B: Sequence[int], waste: int) -> list[tuple[int, int, int]]:
    """Rows in buckets: (first row, row behind the last, pages of the longest). Rows should come shortest first.

    In no bucket do all rows together attend to more than `waste` pages that are not theirs.
    """
    if not pages_B:
        return []
    found, first, longest, wasted = [], 0, pages_B[0], 0
    for r, pages in enumerate(pages_B[1:], 1):
        more = (r - first) * max(0, pages - longest) + max(0, longest - pages)
        if wasted + more > waste:
            found.append((first, r, longest))
            first, longest, wasted = r, pages, 0
        else:
            longest, wasted = max(longest, pages), wasted + more
    return [*found, (first, len(pages_B), longest)]


class PagedCache(Cache):
    """What a Hugging Face model writes one token a row to: the token of row b is at places_B[b] of what is its own.

    together: whether the model is handed all that its rows see.
    """

    def __init__(
        self,
        pages: Pages,
        tables_B: Sequence[Sequence[int]],
        places_B: Sequence[int],
        cuts: Cuts,
        together: bool,
    ) -> None:
        super().__init__(layers=[])
        self._pages, self._together = pages, together
        used_B = [
            -(-(place // pages.size + 1) // cuts.multiple) * cuts.multiple for place in places_B
        ]
        found = (
            [(0, len(used_B), max(used_B))] if together else cut(used_B, cuts.waste // pages.size)
        )
        self.width = max(used_B) * pages.size
        heads = torch.arange(pages.shape.heads, device=pages.shape.device)
        size = pages.size
        written = [
            table[at // size] * size + at % size
            for table, at in zip(tables_B, places_B, strict=True)
        ]
        self._written = (
            torch.tensor(written, device=heads.device)[:, None] + heads * pages.tokens
        ).reshape(-1)
        self._buckets = [_Bucket(pages, slice(a, b), tables_B[a:b], most) for a, b, most in found]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes a layer's new keys and values [B, kv heads, 1, dim]; returns all that its rows see, or something of its
        shape where the attention asks for it itself."""
        keys, values = self._pages.keys[layer_idx], self._pages.values[layer_idx]
        keys.view(-1, keys.shape[-1]).index_copy_(
            0, self._written, key_states.reshape(-1, keys.shape[-1])
        )
        values.view(-1, values.shape[-1]).index_copy_(
            0, self._written, value_states.reshape(-1, values.shape[-1])
        )
        if self._together:
            return self._buckets[0].gathered(keys, values)
        return key_states.expand(-1, -1, self.width, -1), value_states.expand(
            -1, -1, self.width, -1
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen; positions are always given explicitly, so this only sizes buffers."""
        return self.width

    def own(self, layer: int, mask: torch.Tensor | None) -> Iterator[Own]:
        """What the rows of each bucket see in a layer, good until the next layer's; mask [B, 1, 1, width] is cut for it."""
        for bucket in self._buckets:
            keys, values = bucket.gathered(self._pages.keys[layer], self._pages.values[layer])
            seen = None if mask is None else mask[bucket.rows, :, :, : keys.shape[2]]
            yield Own(bucket.rows, keys, values, seen)


class _Bucket:
    """Rows of similar length, and room for what they see in one layer."""

    def __init__(
        self, pages: Pages, rows: slice, tables: Sequence[Sequence[int]], most: int
    ) -> None:
        self.rows, shape = rows, pages.shape
        filled = torch.tensor(
            [[*table[:most], *[0] * (most - len(table))] for table in tables], device=shape.device
        )
        heads = torch.arange(shape.heads, device=shape.device) * pages.count
        self._index = (filled[:, None] + heads[:, None]).reshape(-1)
        self._shape, self._size = (len(tables), shape.heads, most * pages.size), pages.size
        self._keys, self._values = (
            torch.empty(len(self._index), pages.size * dim, dtype=shape.dtype, device=shape.device)
            for dim in (shape.key_dim, shape.value_dim)
        )

    def gathered(
        self, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer's keys and values of all its rows."""
        for whole, room in ((keys, self._keys), (values, self._values)):
            torch.index_select(whole.view(-1, room.shape[1]), 0, self._index, out=room)
        return self._keys.view(*self._shape, -1), self._values.view(*self._shape, -1)


class _Here(local):
    """The pass of this thread whose attention asks for its rows' pages."""

    cache: PagedCache | None = None


_here = _Here()


def current() -> PagedCache | None:
    """The pass that runs, if its attention is to ask."""
    return _here.cache


@contextmanager
def using(cache: PagedCache | None) -> Iterator[None]:
    """Makes a pass's attention ask."""
    _here.cache = cache
    try:
        yield
    finally:
        _here.cache = None
