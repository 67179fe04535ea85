"""Objects of an object store: how they are cut into chunks, and what is said of them. Pure."""

import base64
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from banyan.errors import InvalidInput

CHUNK_BYTES = 512 * 1024  # half of what a broker takes in a message


@dataclass(frozen=True, slots=True)
class Object:
    """What is said of an object. `labels` are its owner's."""

    name: str
    nuid: str  # its chunks' last part of the subject
    size: int
    chunks: int
    digest: bytes
    labels: Mapping[str, str] = field(default_factory=dict)


class Chunks:
    """Pieces of any size, cut into chunks, digested on the way."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._held = bytearray()
        self.size, self.count, self.digest = 0, 0, hashlib.sha256()

    def next(self) -> bytes | None:
        """The next chunk; None when all are out."""
        while len(self._held) < CHUNK_BYTES and (piece := next(self._pieces, None)) is not None:
            self._held += piece
        chunk = bytes(self._held[:CHUNK_BYTES])
        if not chunk:
            return None
        del self._held[:CHUNK_BYTES]
        self.digest.update(chunk)
        self.size, self.count = self.size + len(chunk), self.count + 1
        return chunk


def describe(made: Object, bucket: str) -> bytes:
    said = {
        "name": made.name,
        "bucket": bucket,
        "nuid": made.nuid,
        "size": made.size,
        "chunks": made.chunks,
    }
    digest = "SHA-256=" + base64.urlsafe_b64encode(made.digest).decode()
    mtime = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    options = {"max_chunk_size": CHUNK_BYTES}
    return json.dumps(
        said | {"digest": digest, "mtime": mtime, "metadata": dict(made.labels), "options": options}
    ).encode()


def read(data: bytes, bucket: str) -> Object:
    """What is said of an object. Raises InvalidInput for what no owner says."""
    try:
        said = json.loads(data)
        digest = base64.urlsafe_b64decode(said["digest"].removeprefix("SHA-256="))
        labels = {str(k): str(v) for k, v in said.get("metadata", {}).items()}
        found = Object(
            str(said["name"]),
            str(said["nuid"]),
            int(said["size"]),
            int(said["chunks"]),
            digest,
            labels,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidInput(
            f"what object store {bucket} says of an object is unusable: {error!r}"
        ) from None
    if not 0 <= found.chunks <= found.size or not found.nuid.isalnum():
        raise InvalidInput(
            f"{found.name} in object store {bucket} cannot have {found.chunks} chunks of {found.size} bytes"
        )
    return found
