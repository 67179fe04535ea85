"""A writer of safetensors files that computes their digest on the way.

The digest is BLAKE3, as in services/chassis/weights/file.py.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from services.chassis.weights.file import hasher

CHUNK_BYTES = 16 << 20

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, bytes]:
    """Write and fsync a file; return its size in bytes and its digest."""
    digest, size = hasher(), 0
    with open(path, "wb", buffering=0) as file:
        for chunk in _chunks(tensors):
            digest.update(chunk)
            _write_all(file.fileno(), chunk)
            size += len(chunk)
        os.fsync(file.fileno())
    return size, digest.digest()


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes]:
    """Yield the bytes of the file in chunks of CHUNK_BYTES."""
    buffer = bytearray()
    for part in _parts(tensors):
        view = memoryview(part)
        while view:
            size = min(len(view), CHUNK_BYTES - len(buffer))
            buffer += view[:size]
            view = view[size:]
            if len(buffer) == CHUNK_BYTES:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)


def _parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the header of the file, then the bytes of each tensor."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for tensor in tensors.values():
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().view(-1)
            yield flat.view(torch.uint8).numpy().data.cast("B")
