"""Writes tensors as a safetensors file, digested while it is written (BLAKE3, as in services/chassis/weights/file.py)."""

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
}
_NAMES |= {torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, bytes]:
    """Writes and fsyncs the file; its size and digest."""
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
    """The bytes of the file in pieces of CHUNK_BYTES."""
    held = bytearray()
    for part in _parts(tensors):
        view = memoryview(part)
        while view:
            take = min(len(view), CHUNK_BYTES - len(held))
            held += view[:take]
            view = view[take:]
            if len(held) == CHUNK_BYTES:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


def _parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        head[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for tensor in tensors.values():
        if tensor.numel():
            yield (
                tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data.cast("B")
            )
