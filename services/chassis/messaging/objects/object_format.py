"""The objects of an object store: chunks of bytes, and the JSON that describes them. Pure."""

import base64
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from banyan.errors import InvalidInput

CHUNK_BYTES = 512 * 1024  # half of the broker's limit of a message
_DIGEST_PREFIX = "SHA-256="


@dataclass(frozen=True, slots=True)
class Object:
    """The description of an object.

    nuid: last part of its chunks' subject.
    size: bytes of all chunks.
    chunks: number of chunks.
    digest: SHA-256 of all chunks.
    labels: the owner's own data.
    """

    name: str
    nuid: str
    size: int
    chunks: int
    digest: bytes
    labels: Mapping[str, str] = field(default_factory=dict)


class Chunks:
    """Pieces of any size, cut into chunks and digested on the way."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._buffer = bytearray()
        self.size, self.count = 0, 0
        self.digest = hashlib.sha256()

    def next(self) -> bytes | None:
        """Return the next chunk; None at the end."""
        while len(self._buffer) < CHUNK_BYTES and (piece := next(self._pieces, None)) is not None:
            self._buffer += piece
        chunk = bytes(self._buffer[:CHUNK_BYTES])
        if not chunk:
            return None
        del self._buffer[:CHUNK_BYTES]
        self.digest.update(chunk)
        self.size += len(chunk)
        self.count += 1
        return chunk


def describe(described: Object, bucket: str) -> bytes:
    """Return the JSON of an object, as NATS' own object stores have it."""
    digest = base64.urlsafe_b64encode(described.digest).decode()
    description = {
        "name": described.name,
        "bucket": bucket,
        "nuid": described.nuid,
        "size": described.size,
        "chunks": described.chunks,
        "digest": _DIGEST_PREFIX + digest,
        "mtime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "metadata": dict(described.labels),
        "options": {"max_chunk_size": CHUNK_BYTES},
    }
    return json.dumps(description).encode()


def read(data: bytes, bucket: str) -> Object:
    """Return the object that a JSON describes. Raise InvalidInput if the JSON is unusable."""
    try:
        fields = json.loads(data)
        parsed = Object(
            name=str(fields["name"]),
            nuid=str(fields["nuid"]),
            size=int(fields["size"]),
            chunks=int(fields["chunks"]),
            digest=base64.urlsafe_b64decode(fields["digest"].removeprefix(_DIGEST_PREFIX)),
            labels={str(key): str(value) for key, value in fields.get("metadata", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidInput(
            f"what object store {bucket} says of an object is unusable: {error!r}"
        ) from None
    if not 0 <= parsed.chunks <= parsed.size or not parsed.nuid.isalnum():
        raise InvalidInput(
            f"{parsed.name} in object store {bucket} cannot have {parsed.chunks} chunks"
            f" of {parsed.size} bytes"
        )
    return parsed
