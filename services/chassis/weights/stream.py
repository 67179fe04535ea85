"""A version of the weights as a stream of bytes: whole, or as changes to another version.

The stream is `BANYANW1`, then records, each behind its length: a deflated header (the manifest of
the weight file, and the digest of the parent version) and a record for each block of the file, in
order (delta.py). Pure: files are arrays here. Memory is bounded by a block and a header, on both
sides.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from banyan.errors import InvalidInput
from services.chassis.weights import delta, file
from services.chassis.weights.delta import BLOCK_WORDS, Words
from services.chassis.weights.file import WeightManifest

MAGIC = b"BANYANW1"
_LENGTH = struct.Struct("<I")
_HEADER_BYTES = 16 << 20  # inflated; 100,000 tensors have 15 MB of names
MOST_BYTES = max(_HEADER_BYTES, delta.longest(BLOCK_WORDS))


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a stream.

    manifest: manifest of the weight file.
    parent: digest of the version to which the changes apply; empty for a whole version.
    """

    manifest: WeightManifest
    parent: bytes

    def pack(self) -> bytes:
        """Return the header's record."""
        body = {"manifest": self.manifest.to_json(), "parent": self.parent.hex()}
        return zlib.compress(json.dumps(body).encode(), 1)


def words_of(buffer: object) -> Words:
    """Return a weight file's bytes as words; its size is a multiple of 64 bytes."""
    return np.frombuffer(buffer, "<u2")  # type: ignore[call-overload, no-any-return]


class Encoding:
    """The stream of a version, to be iterated once.

    old_W: words of the version `parent`; with them the stream holds the changes alone.
    changed: number of changed words so far.
    """

    def __init__(
        self,
        manifest: WeightManifest,
        new_W: Words,
        parent: bytes = b"",
        old_W: Words | None = None,
    ) -> None:
        if old_W is not None and len(old_W) != len(new_W):
            raise InvalidInput(
                f"a version of {new_W.nbytes} bytes has no changes to one of {old_W.nbytes}"
            )
        self._header = Header(manifest, b"" if old_W is None else parent)
        self._new_W, self._old_W = new_W, old_W
        self.changed = 0

    def __iter__(self) -> Iterator[bytes]:
        header = self._header.pack()
        yield MAGIC + _LENGTH.pack(len(header)) + header
        for start in range(0, len(self._new_W), BLOCK_WORDS):
            block = slice(start, start + BLOCK_WORDS)
            old_W = None if self._old_W is None else self._old_W[block]
            record = delta.encode(self._new_W[block], old_W)
            self.changed += delta.changed(record)
            yield _LENGTH.pack(len(record)) + record


class Records:
    """Cuts a stream, which arrives in pieces of any size, into its records."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begun = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the records that this piece completes. Raise InvalidInput for other streams."""
        self._buffer += piece
        if not self._begun and len(self._buffer) >= len(MAGIC):
            begin = bytes(self._buffer[: len(MAGIC)])
            if begin != MAGIC:
                raise InvalidInput(f"weights begin with {begin!r}, not with {MAGIC!r}")
            del self._buffer[: len(MAGIC)]
            self._begun = True
        records: list[bytes] = []
        at = 0
        while self._begun and (record := self._record(at)) is not None:
            records.append(record)
            at += _LENGTH.size + len(record)
        del self._buffer[:at]
        return records

    def _record(self, at: int) -> bytes | None:
        """Return the record at a place of the buffer; None if it is incomplete."""
        if len(self._buffer) - at < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer, at)
        if size > MOST_BYTES:
            raise InvalidInput(f"weights hold a record of {size} bytes; {MOST_BYTES} are the most")
        start = at + _LENGTH.size
        if len(self._buffer) - start < size:
            return None
        return bytes(self._buffer[start : start + size])

    def end(self) -> None:
        """Raise InvalidInput if the stream broke off."""
        if self._buffer or not self._begun:
            raise InvalidInput(f"weights break off: {len(self._buffer)} bytes of a record came")


def read_header(record: bytes, path: Path) -> Header:
    """Return the header of a stream whose weights will be stored at `path`. Raise InvalidInput."""
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(record, _HEADER_BYTES)
        if not inflater.eof or inflater.unused_data:
            raise ValueError(f"it inflates to more than {_HEADER_BYTES} bytes, or has no end")
        body = json.loads(text)
        parent = bytes.fromhex(body["parent"])
        manifest_text = str(body["manifest"])
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"the header of the weights for {path} is unusable: {error!r}") from None
    manifest = file.from_json(manifest_text, path)
    if manifest.bytes % file.ALIGN_BYTES:
        raise InvalidInput(
            f"weights of {manifest.bytes} bytes for {path}: no multiple of {file.ALIGN_BYTES}"
        )
    return Header(manifest, parent)


class Blocks:
    """Applies the blocks of a stream, in order, to the words of a file.

    words_W: words of the parent version; zeros for a whole version.
    changed: number of changed words so far.
    """

    def __init__(self, words_W: Words) -> None:
        self._words_W, self._at = words_W, 0
        self.changed = 0

    def take(self, record: bytes) -> None:
        """Apply the next block. Raise InvalidInput."""
        if self._at >= len(self._words_W):
            raise InvalidInput(f"weights hold more blocks than {self._words_W.nbytes} bytes have")
        self.changed += delta.apply(record, self._words_W[self._at : self._at + BLOCK_WORDS])
        self._at += BLOCK_WORDS

    def end(self) -> None:
        """Raise InvalidInput if blocks are missing."""
        if self._at < len(self._words_W):
            raise InvalidInput(f"weights end after {2 * self._at} of {self._words_W.nbytes} bytes")
