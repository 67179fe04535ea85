"""Pages of running branches: their owners, their contents, and the buckets that attend together."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.rollout.engines.torch_engine.kv.kv_slots import KVShape
from services.rollout.engines.torch_engine.kv.pages import Pages
from services.rollout.engines.torch_engine.paged_attention import Bucketing, PagedCache, buckets

SHAPE = KVShape(2, 3, 4, 5, torch.float32, torch.device("cpu"))


def kv(tokens, seed):
    torch.manual_seed(seed)
    return torch.randn(2, 3, tokens, 4), torch.randn(2, 3, tokens, 5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 30)), min_size=1, max_size=25),
    st.integers(1, 9),
)
def test_rows_have_what_was_written_whatever_was_taken_and_given(steps, size):
    pool, rows = Pages(SHAPE, size), {}
    for n, (ends, tokens) in enumerate(steps):
        if ends and rows:
            pool.release(rows.pop(min(rows))[0])
        else:
            table, (keys, values) = [], kv(tokens, n)
            if pool.of(tokens) > pool.free:
                tables = [some for some, _, _ in rows.values()]
                pool = pool.resized(pool.count - pool.free + pool.of(tokens), tables)
            pool.allocate(table, tokens)
            pool.write(table, keys, values)
            rows[n] = (table, keys, values)
        held = [page for table, _, _ in rows.values() for page in table]
        assert (
            len(held) == len(set(held))
            and 0 not in held
            and pool.count == 1 + len(held) + pool.free
        )
        for table, keys, values in rows.values():
            found = pool.read(table, keys.shape[2])
            assert torch.equal(found[0], keys) and torch.equal(found[1], values)


@given(st.lists(st.integers(1, 300), max_size=70), st.integers(0, 200))
def test_buckets_hold_all_rows_and_waste_little(lengths, waste):
    pages = sorted(lengths)
    found = buckets(pages, waste)
    assert [r for first, last, _ in found for r in range(first, last)] == list(range(len(pages)))
    for first, last, longest in found:
        assert longest == max(pages[first:last])
        assert sum(longest - one for one in pages[first:last]) <= waste
    for (first, _, _), (_, last, longest) in pairwise(found):
        assert sum(longest - one for one in pages[first:last]) > waste, "two that could be one"


def test_a_long_row_beside_short_ones_has_a_bucket_of_its_own():
    assert buckets([4] * 63 + [256], 32) == [(0, 63, 4), (63, 64, 256)]
    assert buckets([3, 4, 5, 4, 3], 100) == [(0, 5, 5)]


def test_a_pass_writes_and_sees_what_is_each_rows_own():
    pool, lengths = Pages(SHAPE, 4, 30), [3, 6, 17, 16]
    tables, held = [[] for _ in lengths], [kv(n + 1, n) for n in lengths]
    for table, n, (keys, values) in zip(tables, lengths, held, strict=True):
        pool.allocate(table, n + 1)
        pool.write(table, keys[:, :, :n], values[:, :, :n])
    for together in (False, True):
        cache = PagedCache(pool, tables, lengths, Bucketing(waste=4), together)
        for layer in range(2):
            new = [torch.stack([both[i][layer, :, -1:] for both in held]) for i in (0, 1)]
            whole = cache.update(*new, layer)
            assert whole[0].shape == (4, 3, 20, 4) and whole[1].shape == (4, 3, 20, 5)
            mask = torch.arange(20) <= torch.tensor(lengths)[:, None, None, None]
            seen = {}
            for own in cache.own(layer, mask):
                for r in range(own.rows.start, own.rows.stop):
                    seen[r] = (
                        own.keys[r - own.rows.start],
                        own.values[r - own.rows.start],
                        own.mask[r - own.rows.start],
                    )
            assert sorted(seen) == [0, 1, 2, 3]
            for r, n in enumerate(lengths):
                assert torch.equal(seen[r][0][:, : n + 1], held[r][0][layer])
                assert torch.equal(seen[r][1][:, : n + 1], held[r][1][layer])
                assert (
                    int(seen[r][2].sum()) == n + 1 and seen[r][2].shape[-1] == seen[r][0].shape[1]
                )
                if together:
                    assert torch.equal(whole[0][r][:, : n + 1], held[r][0][layer])
        widths = [own.keys.shape[2] for own in cache.own(0, None)]
        assert widths == ([20] if together else [8, 20])


def test_fixed_shapes_are_whole_multiples():
    pool = Pages(SHAPE, 16, 30)
    tables = [[], []]
    for table, n in zip(tables, (3, 70), strict=True):
        pool.allocate(table, n)
    cache = PagedCache(pool, tables, [2, 69], Bucketing(0, multiple=4), together=False)
    assert [own.keys.shape[2] for own in cache.own(0, None)] == [64, 128] and cache.width == 128
    assert np.isfinite(sum(float(own.keys.sum()) for own in cache.own(0, None)))
