"""A decode pass over pages: rows of similar length attend together, to their gathered pages.

Models whose layers attend to exactly what they cache get no KV from the cache: their attention
fetches it here, bucket by bucket. For the others the pages of all rows are gathered, as wide as the
longest, before the model goes on with them.
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
class Bucketing:
    """Rules by which rows are put into buckets.

    waste: tokens of padding that the rows of a bucket may attend to in vain, about the cost of one
        more bucket.
    multiple: pages that a bucket's width is a multiple of, to limit the number of shapes.
    fixed: whether shapes depend on these rules alone, and never on what runs together.
    """

    waste: int = 512
    multiple: int = 1
    fixed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OwnKv:
    """KV that rows of a batch do not share.

    rows: the rows.
    keys: [rows, kv heads, tokens, dim].
    values: [rows, kv heads, tokens, dim].
    mask: mask of what each row sees of it; None for all.
    """

    rows: slice
    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None


def buckets(pages_B: Sequence[int], waste: int) -> list[tuple[int, int, int]]:
    """Cut rows into buckets: (first row, row behind the last, pages of the longest).

    Rows should come shortest first. In no bucket do all rows together attend to more than `waste`
    pages of padding.
    """
    if not pages_B:
        return []
    result: list[tuple[int, int, int]] = []
    first, longest, wasted = 0, pages_B[0], 0
    for r, pages in enumerate(pages_B[1:], 1):
        more = (r - first) * max(0, pages - longest) + max(0, longest - pages)
        if wasted + more > waste:
            result.append((first, r, longest))
            first, longest, wasted = r, pages, 0
        else:
            longest, wasted = max(longest, pages), wasted + more
    return [*result, (first, len(pages_B), longest)]


class PagedCache(Cache):
    """The Hugging Face cache over pages: row b writes its token at places_B[b] of its own KV.

    together: whether the model gets all that its rows see from `update`.
    """

    def __init__(
        self,
        pages: Pages,
        tables_B: Sequence[Sequence[int]],
        places_B: Sequence[int],
        bucketing: Bucketing,
        together: bool,
    ) -> None:
        size, multiple = pages.size, bucketing.multiple
        used_B = [-(-(place // size + 1) // multiple) * multiple for place in places_B]
        widest = max(used_B)
        written_B = [
            table[place // size] * size + place % size
            for table, place in zip(tables_B, places_B, strict=True)
        ]
        whole = [(0, len(used_B), widest)]
        cuts = whole if together else buckets(used_B, bucketing.waste // size)
        buckets_of_rows = [
            _Bucket(pages, slice(first, stop), tables_B[first:stop], width)
            for first, stop, width in cuts
        ]
        self._set(pages, torch.tensor(written_B, device=pages.shape.device), buckets_of_rows)
        self._together, self.width = together, widest * size

    @classmethod
    def together_at(
        cls, pages: Pages, written_B: torch.Tensor, page_B_W: torch.Tensor
    ) -> "PagedCache":
        """Return the cache of rows in one bucket, with numbers that are on the device already.

        written_B: the place in the pool where each row writes. page_B_W: its pages.
        """
        cache = cls.__new__(cls)
        cache._set(pages, written_B, [_Bucket.of(pages, slice(0, len(page_B_W)), page_B_W)])
        cache._together, cache.width = False, page_B_W.shape[1] * pages.size
        return cache

    def _set(self, pages: Pages, written_B: torch.Tensor, buckets: "list[_Bucket]") -> None:
        super().__init__(layers=[])
        heads = torch.arange(pages.shape.heads, device=pages.shape.device)
        self._written = (written_B[:, None] + heads * pages.tokens).reshape(-1)
        self._pages, self._buckets = pages, buckets

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values [B, kv heads, 1, dim], and return all that rows see.

        Return mere placeholders of its shape where the attention fetches the KV itself.
        """
        keys, values = self._pages.keys[layer_idx], self._pages.values[layer_idx]
        key_dim, value_dim = keys.shape[-1], values.shape[-1]
        keys.view(-1, key_dim).index_copy_(0, self._written, key_states.reshape(-1, key_dim))
        new_values = value_states.reshape(-1, value_dim)
        values.view(-1, value_dim).index_copy_(0, self._written, new_values)
        if self._together:
            return self._buckets[0].gather(keys, values)
        shape = (-1, -1, self.width, -1)
        return key_states.expand(shape), value_states.expand(shape)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the cached tokens; positions are always explicit, so this only sizes buffers."""
        return self.width

    def own(self, layer: int, mask: torch.Tensor | None) -> Iterator[OwnKv]:
        """Yield each bucket's KV in a layer, valid until the next layer's.

        mask [B, 1, 1, width] is cut to the bucket.
        """
        for bucket in self._buckets:
            keys, values = bucket.gather(self._pages.keys[layer], self._pages.values[layer])
            visible = None if mask is None else mask[bucket.rows, :, :, : keys.shape[2]]
            yield OwnKv(rows=bucket.rows, keys=keys, values=values, mask=visible)


class _Bucket:
    """Rows of similar length, with buffers for their KV in one layer."""

    def __init__(
        self, pages: Pages, rows: slice, tables: Sequence[Sequence[int]], width: int
    ) -> None:
        padded = [[*table[:width], *[0] * (width - len(table))] for table in tables]
        self._set(pages, rows, torch.tensor(padded, device=pages.shape.device))

    @classmethod
    def of(cls, pages: Pages, rows: slice, page_B_W: torch.Tensor) -> "_Bucket":
        """Return the bucket of rows whose pages are on the device already."""
        bucket = cls.__new__(cls)
        bucket._set(pages, rows, page_B_W)
        return bucket

    def _set(self, pages: Pages, rows: slice, page_B_W: torch.Tensor) -> None:
        self.rows, shape = rows, pages.shape
        heads = torch.arange(shape.heads, device=shape.device) * pages.count
        self._index = (page_B_W[:, None] + heads[:, None]).reshape(-1)
        self._shape = (len(page_B_W), shape.heads, page_B_W.shape[1] * pages.size)
        self._keys, self._values = (
            torch.empty(len(self._index), pages.size * dim, dtype=shape.dtype, device=shape.device)
            for dim in (shape.key_dim, shape.value_dim)
        )

    def gather(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one layer's keys and values of all its rows."""
        for pool, buffer in ((keys, self._keys), (values, self._values)):
            torch.index_select(pool.view(-1, buffer.shape[1]), 0, self._index, out=buffer)
        return self._keys.view(*self._shape, -1), self._values.view(*self._shape, -1)


class _Pass(local):
    """The cache of this thread's pass from which attention fetches KV."""

    cache: PagedCache | None = None


_pass = _Pass()


def current() -> PagedCache | None:
    """Return the cache of the current pass, if its attention fetches KV from it."""
    return _pass.cache


@contextmanager
def using(cache: PagedCache | None) -> Iterator[None]:
    """Make the attention of passes within fetch KV from a cache."""
    _pass.cache = cache
    try:
        yield
    finally:
        _pass.cache = None
