"""The weight file: one policy's tensors as a flat file and a JSON manifest beside it (PROTOCOL 6).

`policy-<epoch>-<step>.bin` holds the tensors one after the other, little-endian, 64-byte aligned, in order of name;
`policy-<epoch>-<step>.json` says where each one lies and is written last: there is no manifest without its weights.
The digest is BLAKE3 of the file's bytes (`b3sum` checks it by hand): 5 times as fast as BLAKE2b on one core, and a hand-over
reads every byte twice (ADR 008).
Torch is imported only by the functions that make or read tensors.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from blake3 import blake3

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.runtime import torch_environment
from services.chassis.process import private_files
from services.chassis.weights import lock
from services.chassis.weights.mapping import Maps

if TYPE_CHECKING:
    from mmap import mmap

    import torch

ALIGN_BYTES = 64
HASH_THREADS = 2  # more would take cores from sampling, and memory gives no more
_MAPS = Maps()
WIDTHS = {"bfloat16": 2, "float32": 4}
HEAD = "banyan.head."  # before the names of a learned head's tensors: they are float32 always, and none of the model's


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """What a weight file holds. `aliases` names tied tensors: other name → name that is stored."""

    path: Path  # of the .bin file
    epoch: int
    step: int
    digest: bytes
    bytes: int
    tensors: tuple[TensorEntry, ...]
    aliases: Mapping[str, str]
    canary: Mapping[str, Any] | None = (
        None  # what the weights say of a few tokens (services/learner/model/canary.py)
    )
    adapter: Mapping[str, Any] | None = (
        None  # PEFT's configuration, where the tensors are a LoRA adapter of the model's own
    )

    @property
    def version(self) -> PolicyVersion:
        """The policy that the file holds."""
        return PolicyVersion(self.epoch, self.step, self.digest)

    @property
    def manifest_path(self) -> Path:
        """The JSON file beside the weights."""
        return self.path.with_suffix(".json")

    def to_json(self) -> str:
        """Text of the manifest: what FetchWeights carries in its first piece."""
        body: dict[str, Any] = {
            "format": "banyan.weights.v1",
            "epoch": self.epoch,
            "step": self.step,
            "digest": self.digest.hex(),
        }
        tensors = [asdict(t) for t in self.tensors]
        body |= {"bytes": self.bytes, "tensors": tensors, "aliases": dict(self.aliases)}
        said = {"canary": self.canary, "adapter": self.adapter}
        body |= {name: dict(value) for name, value in said.items() if value is not None}
        return json.dumps(body, sort_keys=True)


def from_json(text: str, path: Path) -> WeightManifest:
    """The manifest in a text, for weights that lie (or will lie) at `path`. Raises InvalidInput if it is unusable."""
    try:
        data = json.loads(text)
        tensors = tuple(TensorEntry(**{**t, "shape": tuple(t["shape"])}) for t in data["tensors"])
        digest, size = bytes.fromhex(data["digest"]), int(data["bytes"])
        aliases, said = data["aliases"], (data.get("canary"), data.get("adapter"))
        manifest = WeightManifest(
            path, data["epoch"], data["step"], digest, size, tensors, aliases, *said
        )
        _check(manifest)
        return manifest
    except InvalidInput:  # a ValueError too, and says it better
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInput(f"weight manifest of {path} is unusable: {error!r}") from None


def _check(manifest: WeightManifest) -> None:
    names = {t.name for t in manifest.tensors}
    for t in manifest.tensors:
        if (
            t.dtype not in WIDTHS
            or min(t.shape, default=0) < 0
            or t.bytes != _count(t.shape) * WIDTHS[t.dtype]
        ):
            raise InvalidInput(
                f"tensor {t.name} of {manifest.path} has shape {t.shape}, {t.dtype} and {t.bytes} bytes"
            )
        if t.offset < 0 or t.offset % ALIGN_BYTES or t.offset + t.bytes > manifest.bytes:
            raise InvalidInput(
                f"tensor {t.name} lies at {t.offset}, outside {manifest.path} of {manifest.bytes} bytes"
            )
    missing = sorted(set(manifest.aliases.values()) - names)
    if missing:
        raise InvalidInput(
            f"{manifest.path} names {missing[0]!r} as a tied tensor but does not hold it"
        )


def _count(shape: Iterable[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def hasher() -> "blake3":
    """A digest of weights. Its threads start here, and may run anywhere, though the one that asks keep to a core."""
    with torch_environment.roaming():
        return blake3(max_threads=HASH_THREADS)


def digest_of(path: Path) -> bytes:
    """BLAKE3-256 of a file, read through the page cache by HASH_THREADS threads."""
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
    """Writes `<name>.bin` and `<name>.json`: preallocated, aside, renamed, the manifest last. Tied tensors are one.

    `spare`: the .bin of a version that is wanted no more. Its pages are written over if nobody holds it, which saves the
    time to get and to give back as many; else it is removed.
    """
    private_files.folder(folder)
    entries, aliases, size = _layout(tensors, dtype)
    path, aside = folder / f"{name}.bin", folder / f".{name}.bin.{os.getpid()}"
    try:
        with (lock.recycled(spare, aside, size) if spare else None) or open(aside, "w+b") as file:
            digest = _fill(file, entries, tensors, size)
        manifest = WeightManifest(
            path, epoch, step, digest, size, entries, aliases, canary, adapter
        )
        _publish(aside, path)
        text = folder / f".{name}.json.{os.getpid()}"
        text.write_text(manifest.to_json())
        _publish(text, manifest.manifest_path)
    finally:
        aside.unlink(missing_ok=True)
    return manifest


def size_of(tensors: Mapping[str, "torch.Tensor"], dtype: str = "bfloat16") -> int:
    """Bytes of the file that `write` makes of these tensors."""
    return _layout(tensors, dtype)[2]


def _layout(
    tensors: Mapping[str, "torch.Tensor"], dtype: str
) -> tuple[tuple[TensorEntry, ...], dict[str, str], int]:
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
        entries.append(TensorEntry(name, tuple(tensor.shape), kind, offset, size))
        offset += -(-size // ALIGN_BYTES) * ALIGN_BYTES
    return tuple(entries), aliases, offset


def _fill(
    file: BinaryIO, entries: Iterable[TensorEntry], tensors: Mapping[str, "torch.Tensor"], size: int
) -> bytes:
    """Copies the tensors to their places; the digest of the whole."""
    if not size:
        return blake3().digest()
    memory = reserve(file, size)
    _copy(memory, entries, tensors)
    return hasher().update(memory).digest()


def reserve(file: BinaryIO, size: int) -> "mmap":
    """Makes a file `size` > 0 bytes long and maps it. Raises OSError where there is no room."""
    os.posix_fallocate(
        file.fileno(), 0, size
    )  # now: a full disk is an error here and not a signal in the middle of a copy
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
    """A tensor as a view of a stretch of the file, uint8, that begins at `start` and holds all of it."""
    import torch

    own = flat_B[entry.offset - start : entry.offset - start + entry.bytes]
    return own.view(getattr(torch, entry.dtype)).view(entry.shape)


def _view(memory: "mmap", entry: TensorEntry) -> "torch.Tensor":
    import torch

    dtype = getattr(torch, entry.dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=_count(entry.shape), offset=entry.offset)
    return flat.view(entry.shape)


def _publish(aside: Path, path: Path) -> None:
    if not in_memory(path.parent):
        for target in (aside, path.parent):
            handle = os.open(target, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    os.replace(aside, path)


def in_memory(folder: Path) -> bool:
    """Whether a folder lies on a tmpfs, where fsync promises nothing."""
    at = str(folder.resolve())
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [m for m in mounts if at == m[0] or at.startswith(m[0].rstrip("/") + "/")]
    return bool(above) and max(above, key=lambda m: len(m[0]))[1] == "tmpfs"


def read(manifest_path: Path) -> WeightManifest:
    """The manifest in a file. Raises NotFound, or InvalidInput if it is unusable."""
    with lock.present(manifest_path):
        return from_json(manifest_path.read_text(), manifest_path.with_suffix(".bin"))


def open_verified(manifest_path: Path) -> WeightManifest:
    """The manifest of weights whose digest was checked. Read once per version: hashing 270 MB takes about 0.05 s."""
    manifest = read(manifest_path)
    with lock.present(manifest_path):
        size = manifest.path.stat().st_size
        if size != manifest.bytes:
            raise InvalidInput(
                f"{manifest.path} holds {size} bytes, its manifest says {manifest.bytes}; fetch it again"
            )
        found = hasher().update(_map(manifest) if size else b"").digest()
    if found != manifest.digest:
        said = manifest.digest.hex()[:16]
        raise InvalidInput(
            f"{manifest.path} digests to {found.hex()[:16]} instead of {said}; fetch it again"
        )
    return manifest


def read_tensors(manifest: WeightManifest) -> dict[str, "torch.Tensor"]:
    """The tensors as views of the mapped file; they keep the mapping alive. Tied names share one tensor."""
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
    """The bytes of the mapped file, uint8 [bytes]."""
    import torch

    return (
        torch.frombuffer(_map(manifest), dtype=torch.uint8)
        if manifest.bytes
        else torch.zeros(0, dtype=torch.uint8)
    )


def _map(manifest: WeightManifest) -> "mmap":
    with lock.present(manifest.manifest_path), open(manifest.path, "rb") as file:
        return _MAPS.private(file, manifest.bytes)
