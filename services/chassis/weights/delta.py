"""The changes of a block of weights: their places and amounts. Pure functions on 16-bit words.

A step usually moves a bfloat16 weight by less than one unit in its last place, so most words of
two versions are equal, and the others differ by one or two. A block is encoded as the gaps
between changed words (a byte each, 255 for "255 and more to come") and the zigzag of the
differences, low bytes before high bytes. Each of the two parts is deflated if that makes it
smaller. A block for which all this does not pay is stored whole.
"""

import struct
import zlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from banyan.errors import InvalidInput

Words: TypeAlias = npt.NDArray[np.uint16]
Bytes: TypeAlias = npt.NDArray[np.uint8]

# 512 KiB: both versions of a block stay in a core's cache while they are compared.
BLOCK_WORDS = 1 << 18
HEAD_BYTES = 13
# Kinds of blocks, and flags of a sparse one.
_SAME, _WHOLE, _SPARSE = 0, 1, 2
_GAPS_DEFLATED, _MOVES_DEFLATED = 4, 8
# Kind and flags, number of changed words, bytes of the gaps, bytes of the differences.
_HEAD = struct.Struct("<BIII")
_MORE = 255


def changed(record: bytes) -> int:
    """Return the number of words that a block's record changes."""
    return int(_HEAD.unpack_from(record)[1])


def longest(words: int) -> int:
    """Return the largest size in bytes of the record of a block."""
    return HEAD_BYTES + 2 * words


def encode(new_W: Words, old_W: Words | None = None) -> bytes:
    """Return the record that turns `old_W` into `new_W`, or that holds `new_W` itself."""
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
    kind = _SPARSE | gaps_flag | moves_flag
    return _HEAD.pack(kind, len(at_C), len(gaps), len(moves)) + gaps + moves


def apply(record: bytes, words_W: Words) -> int:
    """Turn the block in `words_W` into the encoded one; return the number of words that changed.

    Raise InvalidInput, and leave the block, for a record that is not of a block of this size.
    """
    if len(record) < HEAD_BYTES:
        raise InvalidInput(
            f"a block's record has {len(record)} bytes; {HEAD_BYTES} are its head alone"
        )
    kind, count, gaps_bytes, moves_bytes = _HEAD.unpack_from(record)
    expected = HEAD_BYTES + gaps_bytes + moves_bytes
    if expected != len(record):
        raise InvalidInput(f"a block's record has {len(record)} bytes and says {expected}")
    if kind == _SAME and not (count or gaps_bytes or moves_bytes):
        return 0
    is_size_of_block = count == len(words_W) and moves_bytes == words_W.nbytes
    if kind == _WHOLE and is_size_of_block and not gaps_bytes:
        words_W[:] = np.frombuffer(record, "<u2", offset=HEAD_BYTES)
        return len(words_W)
    is_sparse = kind & ~(_GAPS_DEFLATED | _MOVES_DEFLATED) == _SPARSE
    if not is_sparse or not 0 < count <= len(words_W):
        raise InvalidInput(
            f"a block of {len(words_W)} words cannot be of kind {kind} with {count} changes"
        )
    body = memoryview(record)[HEAD_BYTES:]
    _apply_changes(body[:gaps_bytes], body[gaps_bytes:], kind, count, words_W)
    return int(count)


def _whole(new_W: Words) -> bytes:
    head = _HEAD.pack(_WHOLE, len(new_W), 0, new_W.nbytes)
    return head + new_W.astype("<u2", copy=False).tobytes()


def _gaps(at_C: npt.NDArray[np.int64]) -> bytes:
    """Return the numbers of unchanged words before each changed one."""
    gaps_C = np.diff(at_C, prepend=-1) - 1
    more_C = gaps_C // _MORE
    gaps = np.full(len(at_C) + int(more_C.sum()), _MORE, np.uint8)
    gaps[np.cumsum(more_C) + np.arange(len(at_C))] = gaps_C % _MORE
    return gaps.tobytes()


def _planes(moved_C: Words) -> bytes:
    """Return the zigzag of differences, low bytes before high bytes."""
    zigzag_C = (moved_C << 1) ^ (0 - (moved_C >> 15))
    bytes_C_2 = zigzag_C.astype("<u2", copy=False).view(np.uint8).reshape(-1, 2)
    return np.ascontiguousarray(bytes_C_2.T).tobytes()


def _unplaned(planes: bytes, count: int) -> Words:
    """Return the zigzag of differences from their bytes."""
    bytes_2_C = np.frombuffer(planes, np.uint8).reshape(2, count)
    return np.ascontiguousarray(bytes_2_C.T).view("<u2")[:, 0].astype(np.uint16)


def _deflated(data: bytes, flag: int) -> tuple[bytes, int]:
    """Return the data deflated with the flag, or itself with 0 if that is not smaller."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    packed = compressor.compress(data) + compressor.flush()
    return (packed, flag) if len(packed) < len(data) else (data, 0)


def _apply_changes(
    gaps: memoryview, moves: memoryview, kind: int, count: int, words_W: Words
) -> None:
    most_gaps = count + len(words_W) // _MORE
    gaps_B = np.frombuffer(_inflated(gaps, kind & _GAPS_DEFLATED, most_gaps), np.uint8)
    planes = _inflated(moves, kind & _MOVES_DEFLATED, 2 * count)
    ends_C = np.flatnonzero(gaps_B != _MORE)
    if len(ends_C) != count or gaps_B[-1] == _MORE or len(planes) != 2 * count:
        raise InvalidInput(
            f"a block's record says {count} changes, and holds {len(ends_C)} gaps and"
            f" {len(planes)} bytes"
        )
    at_C = np.cumsum(gaps_B, dtype=np.int64)[ends_C] + np.arange(count)
    if at_C[-1] >= len(words_W):
        raise InvalidInput(f"a block of {len(words_W)} words cannot change at word {at_C[-1]}")
    zigzag_C = _unplaned(planes, count)
    words_W[at_C] += (zigzag_C >> 1) ^ (0 - (zigzag_C & 1))


def _inflated(data: memoryview, deflated: int, most: int) -> bytes:
    """Return the bytes of a part, never more than `most`. Raise InvalidInput if it has more."""
    if not deflated:
        part, complete = bytes(data[: most + 1]), True
    else:
        inflater = zlib.decompressobj(-15)
        try:
            part = inflater.decompress(data, most + 1)
        except zlib.error as error:
            raise InvalidInput(f"a block's record cannot be inflated: {error}") from None
        complete = inflater.eof and not inflater.unused_data
    if len(part) > most or not complete:
        raise InvalidInput(
            f"a part of a block's record holds more than {most} bytes, or has no end"
        )
    return part
