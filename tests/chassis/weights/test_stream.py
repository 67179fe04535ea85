"""A version as a stream: equal from any pieces, refused if cut, too long or malformed."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.errors import InvalidInput
from services.chassis.weights.delta import BLOCK_WORDS
from services.chassis.weights.file import WeightManifest
from services.chassis.weights.stream import (
    MAGIC,
    MOST_BYTES,
    Blocks,
    Encoding,
    Header,
    Records,
    read_header,
)

PATH = Path("policy-1-2.bin")


def words(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 16, count).astype(np.uint16)


def manifest(count: int) -> WeightManifest:
    return WeightManifest(PATH, 1, 2, b"d" * 32, 2 * count, (), {}, canary={"tokens": [1]})


def rebuilt(stream: bytes, start: np.ndarray, cut: int) -> tuple[Header, np.ndarray]:
    records, found, held = Records(), [], start.copy()
    for at in range(0, len(stream), cut):
        found += records.feed(stream[at : at + cut])
    records.end()
    blocks = Blocks(held)
    for record in found[1:]:
        blocks.take(record)
    blocks.end()
    return read_header(found[0], PATH), held


COUNT = 2 * BLOCK_WORDS + 32


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.sampled_from([7, 1000, 1 << 19, 1 << 30]), st.booleans())
def test_a_stream_gives_the_version_back_from_any_pieces(moved: int, cut: int, whole: bool) -> None:
    old = words(COUNT, 0)
    new = old.copy()
    new[words(moved, 1)] += 1
    if whole and cut == 7:
        cut = 1009
    encoding = Encoding(manifest(COUNT), new, b"p" * 32, None if whole else old)
    header, held = rebuilt(b"".join(encoding), np.zeros_like(old) if whole else old, cut)
    assert np.array_equal(held, new)
    assert header.manifest == manifest(COUNT) and header.parent == (b"" if whole else b"p" * 32)
    assert encoding.changed == (COUNT if whole else int((new != old).sum()))


def test_a_version_of_nothing_is_a_header() -> None:
    header, held = rebuilt(b"".join(Encoding(manifest(0), words(0, 0))), words(0, 0), 5)
    assert header.manifest.bytes == 0 and not len(held)


def test_versions_of_two_sizes_have_no_changes() -> None:
    with pytest.raises(InvalidInput, match="has no changes"):
        Encoding(manifest(64), words(64, 0), b"p" * 32, words(32, 0))


def test_a_stream_that_breaks_off_or_goes_on_is_refused() -> None:
    stream = b"".join(Encoding(manifest(64), words(64, 0)))
    for cut in (stream[:-1], stream[:3], b""):
        with pytest.raises(InvalidInput, match="break off"):
            rebuilt(cut, words(64, 1), 1000)
    with pytest.raises(InvalidInput, match="more blocks"):
        rebuilt(stream + struct.pack("<I", 13) + bytes(13), words(64, 1), 1000)
    blocks = Blocks(words(64, 1))
    with pytest.raises(InvalidInput, match="end after 0 of 128"):
        blocks.end()


def test_another_format_and_too_large_a_record_are_refused() -> None:
    with pytest.raises(InvalidInput, match="begin with"):
        Records().feed(b"safetensors")
    with pytest.raises(InvalidInput, match="a record of"):
        Records().feed(MAGIC + struct.pack("<I", MOST_BYTES + 1))


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"not deflated",
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        zlib.compress(json.dumps({"manifest": "{", "parent": ""}).encode()),
        zlib.compress(json.dumps({"manifest": manifest(64).to_json(), "parent": "xyz"}).encode()),
        zlib.compress(json.dumps({"manifest": manifest(33).to_json(), "parent": ""}).encode()),
        zlib.compress(bytes(MOST_BYTES + 1)),
        Header(manifest(64), b"").pack()[:-1],
        Header(manifest(64), b"").pack() + b"x",
    ],
)
def test_a_header_that_is_none_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"unusable|no multiple"):
        read_header(record, PATH)
