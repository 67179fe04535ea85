"""The radix tree of cached prefixes against a list of all inserted ones."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.rollout.engines.torch_engine.kv.prefix_cache import PrefixCache


def kv(tokens):
    """Return keys that encode token and place, so that a wrong block shows."""
    return torch.tensor([[1000.0 * at + int(t) for at, t in enumerate(tokens)]])[None, :, :, None]


def read(match):
    parts = [piece.keys[0, 0, : stop - piece.start, 0] for piece, stop in match.parts]
    return torch.cat(parts).tolist() if parts else []


def put(store, tokens):
    array = np.array(tokens, np.int32)
    store.insert(array, kv(tokens), kv(tokens))


def test_a_prefix_is_found_as_far_as_it_is_held():
    store = PrefixCache()
    put(store, [1, 2, 3, 4, 5, 6])
    put(store, [1, 2, 3, 9, 9])
    put(store, [7])
    assert store.tokens == 6 + 2 + 1
    for asked, length in (
        ([1, 2, 3, 4, 8], 4),
        ([1, 2, 3, 9, 9, 9], 5),
        ([7, 7], 1),
        ([8], 0),
        ([1, 2, 3, 4, 5, 6], 6),
    ):
        match = store.match(np.array(asked, np.int32), len(asked))
        assert match.length == length
        assert read(match) == kv(asked)[0, 0, :length, 0].tolist()
    assert store.match(np.array([1, 2, 3, 4], np.int32), 3).length == 3


def test_the_least_recently_used_leaf_goes_first_and_pinned_ones_stay():
    store = PrefixCache()
    put(store, [1, 2])
    put(store, [1, 2, 3])
    put(store, [1, 2, 4])
    put(store, [5, 5, 5])
    store.match(np.array([1, 2, 3], np.int32), 3)
    assert store.evict(1) == 1  # [.., 4]
    assert store.match(np.array([1, 2, 4], np.int32), 3).length == 2
    pinned = store.match(np.array([5, 5], np.int32), 2)
    pinned.pin(1)
    assert store.evict(100) == 3
    assert store.tokens == 3
    pinned.pin(-1)
    assert store.evict(100) == 3 and store.tokens == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=25), st.data())
def test_matches_equal_brute_force(sequences, data):
    store = PrefixCache()
    for tokens in sequences:
        put(store, tokens)
    unique = {tuple(tokens[: n + 1]) for tokens in sequences for n in range(len(tokens))}
    assert store.tokens == len(unique)  # every shared token is held once
    asked = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=10))
    match = store.match(np.array(asked, np.int32), len(asked))
    longest = max(
        (n for n in range(len(asked) + 1) if n == 0 or tuple(asked[:n]) in unique), default=0
    )
    assert match.length == longest
    assert read(match) == kv(asked)[0, 0, :longest, 0].tolist()
    store.evict(data.draw(st.integers(0, 30)))
    after = store.match(np.array(asked, np.int32), len(asked))
    assert read(after) == kv(asked)[0, 0, : after.length, 0].tolist()
    assert store.tokens == sum(len(piece) for piece in store._blocks)
