"""The weight file: a policy's tensors as a flat file with a JSON manifest beside it.

`policy-<epoch>-<step>.bin` holds the tensors one after the other in order of name, little-endian
and 64-byte aligned. `policy-<epoch>-<step>.json` has the place of each and is written last: a
manifest has its weights. The digest is BLAKE3 of the file's bytes (`b3sum` checks it): 5 times as
fast as BLAKE2b on one core, and a transfer reads every byte twice (ADR 008; docs/protocol.md,
Weights). Torch is imported only by the functions that write or read tensors.
"""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from blake3 import blake3

from banyan.errors import InvalidInput
from banyan.runtime import torch_environment
from services.chassis.process import private_files
from services.chassis.weights import lock
from services.chassis.weights.manifest import ALIGN_BYTES as ALIGN_BYTES
from services.chassis.weights.manifest import WIDTHS as WIDTHS
from services.chassis.weights.manifest import TensorEntry as TensorEntry
from services.chassis.weights.manifest import WeightManifest as WeightManifest
from services.chassis.weights.manifest import from_json as from_json
from services.chassis.weights.mapping import Maps

if TYPE_CHECKING:
    from mmap import mmap

    import torch

HASH_THREADS = 2  # more would take cores from sampling, and are no faster: memory is the limit
_MAPS = Maps()
# Prefix of a value head's tensors, which are always float32 and no part of the model.
HEAD = "banyan.head."


def hasher() -> "blake3":
    """Return a digest of weights. Its threads may use all cores, even if the caller is pinned."""
    with torch_environment.roaming():
        return blake3(max_threads=HASH_THREADS)


def digest_of(path: Path) -> bytes:
    """Return the BLAKE3-256 of a file, read through the page cache by HASH_THREADS threads."""
    return hasher().update_mmap(path).digest()


def write(
    folder: Path,
    name: str,
    tensors: Mapping[str, "torch.Tensor"],
    epoch: int,
    step: int,
    dtype: str = "bfloat16",
    spare: Path | None = None,
    canary: Mapping[str, Any] | None = None,
    adapter: Mapping[str, Any] | None = None,
) -> WeightManifest:
    """Write `<name>.bin`, then `<name>.json`, each aside and then renamed.

    Tied tensors are stored once.

    spare: .bin of a version that is no longer needed. Its pages are overwritten if no process reads
    it, which saves allocating and freeing as many; otherwise it is removed.
    """
    private_files.folder(folder)
    entries, aliases, size = _layout(tensors, dtype)
    path, partial = folder / f"{name}.bin", folder / f".{name}.bin.{os.getpid()}"
    try:
        recycled = lock.recycled(spare, partial, size) if spare else None
        with recycled or open(partial, "w+b") as file:
            digest = _fill(file, entries, tensors, size)
        manifest = WeightManifest(
            path=path,
            epoch=epoch,
            step=step,
            digest=digest,
            bytes=size,
            tensors=entries,
            aliases=aliases,
            canary=canary,
            adapter=adapter,
        )
        _publish(partial, path)
        partial_manifest = folder / f".{name}.json.{os.getpid()}"
        partial_manifest.write_text(manifest.to_json())
        _publish(partial_manifest, manifest.manifest_path)
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def size_of(tensors: Mapping[str, "torch.Tensor"], dtype: str = "bfloat16") -> int:
    """Return the size in bytes of the file that `write` makes of these tensors."""
    return _layout(tensors, dtype)[2]


def _layout(
    tensors: Mapping[str, "torch.Tensor"], dtype: str
) -> tuple[tuple[TensorEntry, ...], dict[str, str], int]:
    """Return the places of the tensors, the aliases of tied ones, and the size of the file."""
    entries: list[TensorEntry] = []
    aliases: dict[str, str] = {}
    stored: dict[tuple[int, tuple[int, ...]], str] = {}
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and key in stored:
            aliases[name] = stored[key]
            continue
        stored[key] = name
        kind = "float32" if name.startswith(HEAD) else dtype
        size = tensor.numel() * WIDTHS[kind]
        entries.append(TensorEntry(name, tuple(tensor.shape), kind, offset=offset, bytes=size))
        offset += math.ceil(size / ALIGN_BYTES) * ALIGN_BYTES
    return tuple(entries), aliases, offset


def _fill(
    file: BinaryIO, entries: Iterable[TensorEntry], tensors: Mapping[str, "torch.Tensor"], size: int
) -> bytes:
    """Copy the tensors to their places; return the digest of the file."""
    if not size:
        return blake3().digest()
    memory = reserve(file, size)
    _copy(memory, entries, tensors)
    return hasher().update(memory).digest()


def reserve(file: BinaryIO, size: int) -> "mmap":
    """Allocate and map `size` > 0 bytes of a file. Raise OSError if the disk is full."""
    # Here a full disk is an error; during the copy it would be a signal.
    os.posix_fallocate(file.fileno(), 0, size)
    return _MAPS.shared(file, size)


def _copy(
    memory: "mmap", entries: Iterable[TensorEntry], tensors: Mapping[str, "torch.Tensor"]
) -> None:
    import torch

    with torch.no_grad():
        for entry in entries:
            if entry.bytes:
                _view(memory, entry).copy_(tensors[entry.name].detach())


def cut(flat_B: "torch.Tensor", start: int, entry: TensorEntry) -> "torch.Tensor":
    """Return a tensor as a view of a stretch of the file, uint8 [bytes].

    start: offset of the stretch, which holds all of the tensor.
    """
    import torch

    begin = entry.offset - start
    own_B = flat_B[begin : begin + entry.bytes]
    return own_B.view(getattr(torch, entry.dtype)).view(entry.shape)


def _view(memory: "mmap", entry: TensorEntry) -> "torch.Tensor":
    import torch

    dtype, count = getattr(torch, entry.dtype), math.prod(entry.shape)
    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=entry.offset)
    return flat.view(entry.shape)


def _publish(partial: Path, path: Path) -> None:
    """Give a complete file its name, durably."""
    if not in_memory(path.parent):
        for target in (partial, path.parent):
            handle = os.open(target, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    os.replace(partial, path)


def in_memory(folder: Path) -> bool:
    """Return True for a folder on a tmpfs, where fsync has no effect."""
    path = str(folder.resolve())
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [
        (point, kind)
        for point, kind in mounts
        if path == point or path.startswith(point.rstrip("/") + "/")
    ]
    if not above:
        return False
    _, kind = max(above, key=lambda mount: len(mount[0]))
    return kind == "tmpfs"


def read(manifest_path: Path) -> WeightManifest:
    """Return the manifest in a file. Raise NotFound, or InvalidInput if it is unusable."""
    with lock.present(manifest_path):
        return from_json(manifest_path.read_text(), manifest_path.with_suffix(".bin"))


def open_verified(manifest_path: Path) -> WeightManifest:
    """Return the manifest of weights after checking their digest. Raise NotFound, InvalidInput.

    To be called once per version: hashing 270 MB takes about 0.05 s.
    """
    manifest = read(manifest_path)
    with lock.present(manifest_path):
        size = manifest.path.stat().st_size
        if size != manifest.bytes:
            raise InvalidInput(
                f"{manifest.path} holds {size} bytes, its manifest says {manifest.bytes};"
                " fetch it again"
            )
        digest = hasher().update(_map(manifest) if size else b"").digest()
    if digest != manifest.digest:
        actual, expected = digest.hex()[:16], manifest.digest.hex()[:16]
        raise InvalidInput(
            f"{manifest.path} digests to {actual} instead of {expected}; fetch it again"
        )
    return manifest


def read_tensors(manifest: WeightManifest) -> dict[str, "torch.Tensor"]:
    """Return the tensors as views of the mapped file, which they keep alive.

    Tied names share a tensor.
    """
    import torch

    tensors: dict[str, Any] = {}
    memory = _map(manifest) if manifest.bytes else None
    for entry in manifest.tensors:
        if memory is not None and entry.bytes:
            tensors[entry.name] = _view(memory, entry)
        else:
            tensors[entry.name] = torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype))
    return tensors | {alias: tensors[name] for alias, name in manifest.aliases.items()}


def read_flat(manifest: WeightManifest) -> "torch.Tensor":
    """Return the bytes of the mapped file, uint8 [bytes]."""
    import torch

    if not manifest.bytes:
        return torch.zeros(0, dtype=torch.uint8)
    return torch.frombuffer(_map(manifest), dtype=torch.uint8)


def _map(manifest: WeightManifest) -> "mmap":
    with lock.present(manifest.manifest_path), open(manifest.path, "rb") as file:
        return _MAPS.private(file, manifest.bytes)
