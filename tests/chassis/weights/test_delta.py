"""Changes between two versions of weights: exact, small after small steps, safe when hostile."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.errors import InvalidInput
from services.chassis.weights import delta

SPARSE, GAPS_DEFLATED, MOVES_DEFLATED = 2, 4, 8


def block(words: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 16, words).astype(np.uint16)


@st.composite
def versions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    words = draw(st.integers(1, 3000))
    old = block(words, draw(st.integers(0, 9)))
    new = old.copy()
    share = draw(st.sampled_from([0.0, 0.001, 0.02, 0.5, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    at = rng.random(words) < share
    at[draw(st.integers(0, words - 1))] = True
    kinds = {"ulp": [1, 65535], "any": list(range(65536)), "ends": [0, 1, 32767, 32768, 65535]}
    new[at] += rng.choice(kinds[draw(st.sampled_from(sorted(kinds)))], int(at.sum())).astype(
        np.uint16
    )
    return old, new


@settings(max_examples=300, deadline=None)
@given(versions())
def test_any_two_versions_round_trip(pair: tuple[np.ndarray, np.ndarray]) -> None:
    old, new = pair
    record, words = delta.encode(new, old), old.copy()
    assert len(record) <= delta.longest(len(new))
    assert delta.apply(record, words) == delta.changed(record)
    assert np.array_equal(words, new)
    whole, zeros = delta.encode(new), np.zeros_like(new)
    delta.apply(whole, zeros)
    assert np.array_equal(zeros, new)


def test_gaps_and_moves_by_hand() -> None:
    """Words 2, 3 and 700 of 1,000 move by +1, -1 and +3.

    The gaps are 2, 0 and 696 = 255 + 255 + 186, the zigzag 2, 1 and 6.
    """
    old = np.zeros(1000, np.uint16)
    new = old.copy()
    new[2], new[3], new[700] = 1, 65535, 3
    record = delta.encode(new, old)
    assert struct.unpack_from("<BIII", record) == (SPARSE, 3, 5, 6)
    assert record[13:] == bytes([2, 0, 255, 255, 186]) + bytes([2, 1, 6]) + bytes(3)
    assert delta.encode(old, old) == bytes(13)


def test_a_small_step_takes_about_a_byte_for_each_word_that_moved() -> None:
    old = block(delta.BLOCK_WORDS)
    rng, new = np.random.default_rng(1), old.copy()
    at = rng.random(len(old)) < 0.01
    new[at] += rng.choice([1, 65535], int(at.sum())).astype(np.uint16)
    assert len(delta.encode(new, old)) < 1.35 * at.sum()


def packed(kind: int, count: int, gaps: bytes, moves: bytes) -> bytes:
    return struct.pack("<BIII", kind, count, len(gaps), len(moves)) + gaps + moves


def deflate(data: bytes) -> bytes:
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    return made.compress(data) + made.flush()


HOSTILE = {
    "nothing": b"",
    "a head alone that promises more": struct.pack("<BIII", SPARSE, 1, 1, 2),
    "more than it says": bytes(14),
    "an unknown kind": packed(3, 1, b"\0", b"\0\0"),
    "an unknown flag": packed(SPARSE | 32, 1, b"\0", b"\0\0"),
    "a word beyond the block": packed(SPARSE, 1, b"\x64", b"\2\0"),
    "words beyond the block": packed(SPARSE, 2, b"\x62\1", b"\2\2\0\0"),
    "gaps without an end": packed(SPARSE, 1, b"\xff", b"\2\0"),
    "gaps that go on": packed(SPARSE, 1, b"\1\xff", b"\2\0"),
    "fewer gaps than changes": packed(SPARSE, 3, b"\1\1", b"\2\2\2\0\0\0"),
    "fewer moves than changes": packed(SPARSE, 1, b"\1", b"\2"),
    "more moves than changes": packed(SPARSE, 1, b"\1", b"\2\0\0"),
    "more changes than words": packed(SPARSE, 101, bytes(101), bytes(202)),
    "no change at all": packed(SPARSE, 0, b"", b""),
    "changes where there are none": packed(0, 1, b"", b""),
    "a whole block that is too short": packed(1, 100, b"", bytes(198)),
    "a whole block that is too long": packed(1, 100, b"", bytes(202)),
    "what cannot be inflated": packed(SPARSE | GAPS_DEFLATED, 1, b"\7\7\7", b"\2\0"),
    "a bomb": packed(SPARSE | GAPS_DEFLATED, 1, deflate(b"\xff" * (1 << 24)), b"\2\0"),
    "a bomb of moves": packed(SPARSE | MOVES_DEFLATED, 1, b"\1", deflate(bytes(1 << 24))),
    "a deflated part without an end": packed(
        SPARSE | GAPS_DEFLATED, 1, deflate(b"\1")[:-1], b"\2\0"
    ),
    "a deflated part with more behind it": packed(
        SPARSE | GAPS_DEFLATED, 1, deflate(b"\1") + b"x", b"\2\0"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_is_refused_and_changes_nothing(name: str) -> None:
    words = block(100)
    before = words.copy()
    with pytest.raises(InvalidInput, match=r"block|part"):
        delta.apply(HOSTILE[name], words)
    assert np.array_equal(words, before)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 15), st.integers(0, 120), st.integers(0, 60))
def test_any_bytes_are_applied_within_the_block_or_refused(
    body: bytes, kind: int, count: int, gaps: int
) -> None:
    words = block(102)
    guard = words[100:].copy()
    record = (
        struct.pack("<BIII", kind, count, min(gaps, len(body)), max(0, len(body) - gaps)) + body
    )
    try:
        delta.apply(record, words[:100])
    except InvalidInput:
        assert np.array_equal(words, block(102))
    assert np.array_equal(words[100:], guard)
