"""Digests and the encoding helpers that identities are built from (PROTOCOL 1). All digests are BLAKE2b-256."""

import hashlib
import json
import struct
from typing import Any

DIGEST_BYTES = 32
_LENGTH = struct.Struct("<I")


def blake(*parts: bytes) -> bytes:
    """BLAKE2b-256 of the parts, joined as they are: 32 bytes."""
    return hashlib.blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


def packed(data: bytes) -> bytes:
    """`data` behind its length as a little-endian u32, so that no two field lists encode alike."""
    return _LENGTH.pack(len(data)) + data


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, no spaces, UTF-8: the same bytes for the same value. Raises ValueError on NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def row_digest(row: dict[str, Any]) -> bytes:
    """Identity of a task row: 32 bytes over its canonical JSON."""
    return blake(b"banyan.row.v1", canonical(row))


def tree_id(run_id: str, group_id: str, row: bytes, index: int) -> bytes:
    """Identity of a tree: the run, its group, the digest of its row and its index in the group."""
    return blake(
        b"banyan.tree.v1",
        packed(run_id.encode()),
        packed(group_id.encode()),
        packed(row),
        struct.pack("<I", index),
    )
