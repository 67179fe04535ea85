"""The manifest of a weight file: its version, and the place of each tensor."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion

ALIGN_BYTES = 64
WIDTHS = {"bfloat16": 2, "float32": 4}  # bytes of a number
_FORMAT = "banyan.weights.v1"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The place of a tensor in the file.

    offset, bytes: its stretch of the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """The content of a weight file.

    path: the .bin file.
    epoch, step, digest: version of the policy; the digest is of the file's bytes.
    bytes: size of the file.
    aliases: names of tied tensors, other name → stored name.
    canary: the weights' output for a few tokens (services/learner/model/canary.py).
    adapter: PEFT's configuration if the tensors are a LoRA adapter of the model's own.
    """

    path: Path
    epoch: int
    step: int
    digest: bytes
    bytes: int
    tensors: tuple[TensorEntry, ...]
    aliases: Mapping[str, str]
    canary: Mapping[str, Any] | None = None
    adapter: Mapping[str, Any] | None = None

    @property
    def version(self) -> PolicyVersion:
        """The policy that the file holds."""
        return PolicyVersion(self.epoch, self.step, self.digest)

    @property
    def manifest_path(self) -> Path:
        """The JSON file beside the weights."""
        return self.path.with_suffix(".json")

    def to_json(self) -> str:
        """Return the text of the manifest, as the first piece of FetchWeights carries it."""
        body: dict[str, Any] = {
            "format": _FORMAT,
            "epoch": self.epoch,
            "step": self.step,
            "digest": self.digest.hex(),
            "bytes": self.bytes,
            "tensors": [asdict(tensor) for tensor in self.tensors],
            "aliases": dict(self.aliases),
        }
        if self.canary is not None:
            body["canary"] = dict(self.canary)
        if self.adapter is not None:
            body["adapter"] = dict(self.adapter)
        return json.dumps(body, sort_keys=True)


def from_json(text: str, path: Path) -> WeightManifest:
    """Return the manifest in a text, for weights that lie (or will lie) at `path`.

    Raise InvalidInput if it is unusable.
    """
    try:
        data = json.loads(text)
        manifest = WeightManifest(
            path=path,
            epoch=data["epoch"],
            step=data["step"],
            digest=bytes.fromhex(data["digest"]),
            bytes=int(data["bytes"]),
            tensors=tuple(_entry(fields) for fields in data["tensors"]),
            aliases=data["aliases"],
            canary=data.get("canary"),
            adapter=data.get("adapter"),
        )
        _check(manifest)
        return manifest
    except InvalidInput:  # a ValueError too, with a better message
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInput(f"weight manifest of {path} is unusable: {error!r}") from None


def _entry(fields: Mapping[str, Any]) -> TensorEntry:
    return TensorEntry(**{**fields, "shape": tuple(fields["shape"])})


def _check(manifest: WeightManifest) -> None:
    path = manifest.path
    for tensor in manifest.tensors:
        if not _has_its_size(tensor):
            raise InvalidInput(
                f"tensor {tensor.name} of {path} has shape {tensor.shape}, {tensor.dtype} and"
                f" {tensor.bytes} bytes"
            )
        end = tensor.offset + tensor.bytes
        if tensor.offset < 0 or tensor.offset % ALIGN_BYTES or end > manifest.bytes:
            raise InvalidInput(
                f"tensor {tensor.name} lies at {tensor.offset}, outside {path} of"
                f" {manifest.bytes} bytes"
            )
    names = {tensor.name for tensor in manifest.tensors}
    missing = sorted(set(manifest.aliases.values()) - names)
    if missing:
        raise InvalidInput(f"{path} names {missing[0]!r} as a tied tensor but does not hold it")


def _has_its_size(tensor: TensorEntry) -> bool:
    if tensor.dtype not in WIDTHS or min(tensor.shape, default=0) < 0:
        return False
    return tensor.bytes == math.prod(tensor.shape) * WIDTHS[tensor.dtype]
