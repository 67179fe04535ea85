"""Frames between parent and child: JSON objects behind their length, a little-endian u32."""

import json
import os
import struct
from typing import Any

from banyan.errors import InvalidInput

HEADER = struct.Struct("<I")
MAX_BYTES = 16 << 20  # a completion and its row; more than any context window
MAX_ANSWER_BYTES = 1 << 20  # of an attempt


def pack(message: dict[str, Any]) -> bytes:
    """Return a frame. Raise InvalidInput above the limit, or for values outside JSON (NaN)."""
    try:
        body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"a completion's row is no JSON: {error}") from None
    return HEADER.pack(checked(len(body))) + body


def checked(size: int) -> int:
    """Return the size of a frame's body. Raise InvalidInput above the limit."""
    if size > MAX_BYTES:
        raise InvalidInput(
            f"a completion and its row of {size} bytes are over the scorer's limit of {MAX_BYTES}"
        )
    return size


def parse(body: bytes) -> dict[str, Any]:
    """Return the object in a frame's body. Raise InvalidInput if the body is anything else."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a frame of {len(body)} bytes is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise InvalidInput(f"a frame holds {type(message).__name__}, not an object")
    return message


def read(handle: int) -> dict[str, Any] | None:
    """Return the next frame of a blocking pipe; None at its end."""
    header = _exactly(handle, HEADER.size)
    body = _exactly(handle, checked(HEADER.unpack(header)[0])) if header else None
    return None if body is None else parse(body)


def write(handle: int, message: dict[str, Any]) -> None:
    """Write a frame to a blocking pipe."""
    send(handle, pack(message))


def send(handle: int, frame: bytes) -> None:
    """Write a packed frame to a blocking pipe."""
    data = memoryview(frame)
    while data:
        data = data[os.write(handle, data) :]


def _exactly(handle: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(handle, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
