"""What changed in a block of weights: where, and by how much. Pure functions on arrays of 16-bit words.

A step moves a bfloat16 weight by less than one unit in its last place more often than not, so most words of two versions
are the same, and the others differ by one or two. A block is kept as the gaps between the words that changed (a byte each,
255 for "255 and more to come") and the zigzag of their differences, low bytes before high bytes. Each of both parts is
deflated where that makes it smaller. A block in which that does not pay is kept whole.
"""

import struct
import zlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from banyan.errors import InvalidInput

Words: TypeAlias = npt.NDArray[np.uint16]
Bytes: TypeAlias = npt.NDArray[np.uint8]

BLOCK_WORDS = (
    1 << 18
)  # 512 KiB: both versions of a block stay in a core's cache while they are compared
HEAD_BYTES = 13
_SAME, _WHOLE, _SPARSE = 0, 1, 2
_GAPS_DEFLATED, _MOVES_DEFLATED = 4, 8
_HEAD = struct.Struct(
    "<BIII"
)  # kind and flags, words that changed, bytes of the gaps, bytes of the moves
_MORE = 255


def changed(record: bytes) -> int:
    """How many words a block's record changes."""
    return int(_HEAD.unpack_from(record)[1])


def longest(words: int) -> int:
    """Bytes that the record of a block has at most."""
    return HEAD_BYTES + 2 * words


def encode(new_W: Words, old_W: Words | None = None) -> bytes:
    """The record of a block: what makes `new_W` of `old_W`, or `new_W` itself."""
    if old_W is None:
        return _whole(new_W)
    at_C = np.flatnonzero(new_W != old_W)
    if not len(at_C):
        return _HEAD.pack(_SAME, 0, 0, 0)
    if 3 * len(at_C) > 2 * len(new_W):
        return _whole(new_W)
    gaps, gaps_flag = _deflated(_gaps(at_C), _GAPS_DEFLATED)
    moves, moves_flag = _deflated(_planes(new_W[at_C] - old_W[at_C]), _MOVES_DEFLATED)
    if len(gaps) + len(moves) >= new_W.nbytes:
        return _whole(new_W)
    return (
        _HEAD.pack(_SPARSE | gaps_flag | moves_flag, len(at_C), len(gaps), len(moves))
        + gaps
        + moves
    )


def apply(record: bytes, words_W: Words) -> int:
    """Makes of the block in `words_W` the one that was encoded; how many words that changed.

    Raises InvalidInput for a record that no encoder makes of a block of this size; the block is then as it was.
    """
    if len(record) < HEAD_BYTES:
        raise InvalidInput(
            f"a block's record has {len(record)} bytes; {HEAD_BYTES} are its head alone"
        )
    kind, count, gaps, moves = _HEAD.unpack_from(record)
    if HEAD_BYTES + gaps + moves != len(record):
        raise InvalidInput(
            f"a block's record has {len(record)} bytes and says {HEAD_BYTES + gaps + moves}"
        )
    if kind == _SAME and not (count or gaps or moves):
        return 0
    if kind == _WHOLE and count == len(words_W) and not gaps and moves == words_W.nbytes:
        words_W[:] = np.frombuffer(record, "<u2", offset=HEAD_BYTES)
        return len(words_W)
    if kind & ~(_GAPS_DEFLATED | _MOVES_DEFLATED) != _SPARSE or not 0 < count <= len(words_W):
        raise InvalidInput(
            f"a block of {len(words_W)} words cannot be of kind {kind} with {count} changes"
        )
    _move(memoryview(record)[HEAD_BYTES:], kind, count, gaps, words_W)
    return int(count)


def _whole(new_W: Words) -> bytes:
    return (
        _HEAD.pack(_WHOLE, len(new_W), 0, new_W.nbytes) + new_W.astype("<u2", copy=False).tobytes()
    )


def _gaps(at_C: npt.NDArray[np.int64]) -> bytes:
    """Words that did not change before each one that did."""
    gaps_C = np.diff(at_C, prepend=-1) - 1
    more_C = gaps_C // _MORE
    gaps = np.full(len(at_C) + int(more_C.sum()), _MORE, np.uint8)
    gaps[np.cumsum(more_C) + np.arange(len(at_C))] = gaps_C % _MORE
    return gaps.tobytes()


def _planes(moved_C: Words) -> bytes:
    zigzag_C = (moved_C << 1) ^ (0 - (moved_C >> 15))
    return np.ascontiguousarray(
        zigzag_C.astype("<u2", copy=False).view(np.uint8).reshape(-1, 2).T
    ).tobytes()


def _deflated(data: bytes, flag: int) -> tuple[bytes, int]:
    made = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    packed = made.compress(data) + made.flush()
    return (packed, flag) if len(packed) < len(data) else (data, 0)


def _move(body: memoryview, kind: int, count: int, gaps: int, words_W: Words) -> None:
    gaps_B = np.frombuffer(
        _part(body[:gaps], kind & _GAPS_DEFLATED, count + len(words_W) // _MORE), np.uint8
    )
    planes = _part(body[gaps:], kind & _MOVES_DEFLATED, 2 * count)
    ends_C = np.flatnonzero(gaps_B != _MORE)
    if len(ends_C) != count or gaps_B[-1] == _MORE or len(planes) != 2 * count:
        raise InvalidInput(
            f"a block's record says {count} changes, and holds {len(ends_C)} gaps and {len(planes)} bytes"
        )
    at_C = np.cumsum(gaps_B, dtype=np.int64)[ends_C] + np.arange(count)
    if at_C[-1] >= len(words_W):
        raise InvalidInput(f"a block of {len(words_W)} words cannot change at word {at_C[-1]}")
    zigzag_C = (
        np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(2, count).T)
        .view("<u2")[:, 0]
        .astype(np.uint16)
    )
    words_W[at_C] += (zigzag_C >> 1) ^ (0 - (zigzag_C & 1))


def _part(data: memoryview, deflated: int, most: int) -> bytes:
    """The bytes of a part, never more than `most`, whatever the record holds. Raises InvalidInput."""
    if not deflated:
        found, whole = bytes(data[: most + 1]), True
    else:
        inflater = zlib.decompressobj(-15)
        try:
            found = inflater.decompress(data, most + 1)
        except zlib.error as error:
            raise InvalidInput(f"a block's record cannot be inflated: {error}") from None
        whole = inflater.eof and not inflater.unused_data
    if len(found) > most or not whole:
        raise InvalidInput(
            f"a part of a block's record holds more than {most} bytes, or has no end"
        )
    return found
