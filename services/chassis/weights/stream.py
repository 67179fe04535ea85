"""A version of the weights as a stream of bytes: whole, or what changed since another version.

`BANYANW1`, then records, each behind its length: a deflated header (the manifest of the weight file, and the digest of the
version that the changes are of) and one record for each block of the file, in order (weightdelta.py). Pure: files are
arrays here. Memory is bounded by a block and a header, on both sides.
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
    """What a stream begins with. `parent`: digest of the version whose changes follow; empty for a whole one."""

    manifest: WeightManifest
    parent: bytes

    def pack(self) -> bytes:
        """The header's record."""
        body = {"manifest": self.manifest.to_json(), "parent": self.parent.hex()}
        return zlib.compress(json.dumps(body).encode(), 1)


def words_of(buffer: object) -> Words:
    """A weight file's bytes as words. Files are whole numbers of 64 bytes."""
    return np.frombuffer(buffer, "<u2")  # type: ignore[call-overload, no-any-return]


class Encoding:
    """The stream of a version; with `old_W`, of what changed since the version `parent`. `changed`: words so far."""

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
        self._new_W, self._old_W, self.changed = new_W, old_W, 0

    def __iter__(self) -> Iterator[bytes]:
        header = self._header.pack()
        yield MAGIC + _LENGTH.pack(len(header)) + header
        for start in range(0, len(self._new_W), BLOCK_WORDS):
            block = slice(start, start + BLOCK_WORDS)
            record = delta.encode(
                self._new_W[block], None if self._old_W is None else self._old_W[block]
            )
            self.changed += delta.changed(record)
            yield _LENGTH.pack(len(record)) + record


class Records:
    """Cuts a stream into its records, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._begun = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The records that are whole with this piece. Raises InvalidInput for what is no such stream."""
        self._held += piece
        if not self._begun and len(self._held) >= len(MAGIC):
            if not self._held.startswith(MAGIC):
                raise InvalidInput(
                    f"weights begin with {bytes(self._held[: len(MAGIC)])!r}, not with {MAGIC!r}"
                )
            del self._held[: len(MAGIC)]
            self._begun = True
        found: list[bytes] = []
        at = 0
        while self._begun and (record := self._record(at)) is not None:
            found.append(record)
            at += _LENGTH.size + len(record)
        del self._held[:at]
        return found

    def _record(self, at: int) -> bytes | None:
        if len(self._held) - at < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._held, at)
        if size > MOST_BYTES:
            raise InvalidInput(f"weights hold a record of {size} bytes; {MOST_BYTES} are the most")
        start = at + _LENGTH.size
        return bytes(self._held[start : start + size]) if len(self._held) - start >= size else None

    def end(self) -> None:
        """Raises InvalidInput if the stream broke off."""
        if self._held or not self._begun:
            raise InvalidInput(f"weights break off: {len(self._held)} bytes of a record came")


def read_header(record: bytes, path: Path) -> Header:
    """The header of a stream whose weights will lie at `path`. Raises InvalidInput."""
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(record, _HEADER_BYTES)
        if not inflater.eof or inflater.unused_data:
            raise ValueError(f"it inflates to more than {_HEADER_BYTES} bytes, or has no end")
        body = json.loads(text)
        parent = bytes.fromhex(body["parent"])
        said = str(body["manifest"])
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"the header of the weights for {path} is unusable: {error!r}") from None
    manifest = file.from_json(said, path)
    if manifest.bytes % file.ALIGN_BYTES:
        raise InvalidInput(
            f"weights of {manifest.bytes} bytes for {path}: no multiple of {file.ALIGN_BYTES}"
        )
    return Header(manifest, parent)


class Blocks:
    """Applies the blocks of one stream, in order, to the words of a file: zeros for a whole version, else its parent's."""

    def __init__(self, words_W: Words) -> None:
        self._words_W, self._at, self.changed = words_W, 0, 0

    def take(self, record: bytes) -> None:
        """The next block. Raises InvalidInput."""
        if self._at >= len(self._words_W):
            raise InvalidInput(f"weights hold more blocks than {self._words_W.nbytes} bytes have")
        self.changed += delta.apply(record, self._words_W[self._at : self._at + BLOCK_WORDS])
        self._at += BLOCK_WORDS

    def end(self) -> None:
        """Raises InvalidInput if blocks are missing."""
        if self._at < len(self._words_W):
            raise InvalidInput(f"weights end after {2 * self._at} of {self._words_W.nbytes} bytes")
