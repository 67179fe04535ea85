"""Checkpoints: Hugging Face folders for `from_pretrained`, with Adam's state and a manifest.

Of a run that trains an adapter: PEFT's folder, and in the manifest the digest of its base.

A folder `step-<step>-epoch-<epoch>` is written aside, fsynced and renamed, so a kill at any byte
leaves the older ones as they were. A folder counts only if its manifest, which is written last, is
whole, and every file has the size and digest of the manifest.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from banyan.errors import TemporaryError
from services.chassis.weights.file import digest_of
from services.learner.checkpoints import safetensors_writer

log = logging.getLogger(__name__)

MODEL, OPTIMIZER, MANIFEST = "model.safetensors", "optimizer.safetensors", "manifest.json"
KEEP = 2
_FORMAT = "banyan.checkpoint.v1"
ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"  # as PEFT names them
_COPIED = ("*.json", "*.jinja", "*.txt", "*.model")  # config and tokenizer of the base model
_OWN = {MANIFEST, "banyan.json", "sft.json", "model.safetensors.index.json"}
_WHOLE = {"config.json", "generation_config.json"}  # a folder that has them is a model's


@dataclass(frozen=True, slots=True)
class Mark:
    """The identity of a checkpoint.

    run_id: its run
    learner_epoch: epoch of the learner that wrote it
    step: step of its policy
    next_ordinal: number of batches that made the policy
    policy_digest: digest of the published weights, as hexadecimal digits
    """

    run_id: str
    learner_epoch: int
    step: int
    next_ordinal: int
    policy_digest: str


@dataclass(frozen=True, slots=True)
class Adapter:
    """The mark of weights that are an adapter: PEFT's configuration, and the digest of its base."""

    config: Mapping[str, Any]
    base: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tensors that no longer change, with their mark.

    weights: float32 weights by name
    moments: Adam's state and the value head's, by name
    adapter: set where the weights are an adapter's
    """

    mark: Mark
    weights: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]
    adapter: Adapter | None = None

    def copied(self) -> "Snapshot":
        """Return a copy in the host's memory: training goes on while a thread writes it."""
        return replace(self, weights=_on_host(self.weights), moments=_on_host(self.moments))


def _on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def name_of(mark: Mark) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{mark.step:08d}-epoch-{mark.learner_epoch}"


# -- writing --


def write(folder: Path, snapshot: Snapshot, base: Path) -> Path:
    """Write a checkpoint under `folder` and return its path. Raises TemporaryError on failure.

    base: folder of the base model, whose configuration and tokenizer are copied
    """
    final = folder / name_of(snapshot.mark)
    if read_mark(final) == snapshot.mark:
        collect(folder, snapshot.mark.learner_epoch)
        return final
    aside = folder / f".{final.name}.{os.getpid()}"
    is_new = not folder.exists()
    try:
        _fill(aside, snapshot, base)
        shutil.rmtree(final, ignore_errors=True)  # a torn one of the same name
        os.rename(aside, final)
        _fsync(folder)
        if is_new:  # else a power cut may lose the folder's own name
            _fsync(folder.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        cause = error.strerror or error
        raise TemporaryError(f"cannot write checkpoint {final}: {cause}; is there room?") from None
    collect(folder, snapshot.mark.learner_epoch)
    return final


def _fill(aside: Path, snapshot: Snapshot, base: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    adapter = snapshot.adapter
    for source in beside(base, whole=adapter is None):
        shutil.copyfile(source, aside / source.name)
    if adapter is not None:
        (aside / CONFIG).write_text(json.dumps(dict(adapter.config), sort_keys=True, indent=2))
    files = {path.name: _synced_entry(path) for path in sorted(aside.iterdir())}
    weights_name = ADAPTER if adapter else MODEL
    for name, tensors in ((weights_name, snapshot.weights), (OPTIMIZER, snapshot.moments)):
        size, digest = safetensors_writer.write(aside / name, tensors)
        files[name] = {"bytes": size, "digest": digest.hex()}
    manifest = {"format": _FORMAT, "mark": asdict(snapshot.mark), "files": files}
    if adapter:
        manifest["base"] = adapter.base
    (aside / MANIFEST).write_text(json.dumps(manifest, sort_keys=True))
    _fsync(aside / MANIFEST)
    _fsync(aside)


def beside(base: Path, whole: bool) -> list[Path]:
    """Return the files beside the weights: the tokenizer, and with `whole` the configuration."""
    paths = {path for pattern in _COPIED for path in base.glob(pattern)}
    skipped = _OWN if whole else _OWN | _WHOLE
    return sorted(path for path in paths if path.name not in skipped)


def _synced_entry(path: Path) -> dict[str, Any]:
    """Fsync a file and return its entry of the manifest."""
    _fsync(path)
    return {"bytes": path.stat().st_size, "digest": digest_of(path).hex()}


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- reading --


def base_of(path: Path) -> str:
    """Return the digest of the base of a checkpoint's adapter; empty for a whole model."""
    return str(json.loads((path / MANIFEST).read_text()).get("base", ""))


def _read(path: Path) -> tuple[Mark, dict[str, Any]] | None:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format"] != _FORMAT:
            return None
        return Mark(**manifest["mark"]), dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_mark(path: Path, digests: bool = True) -> Mark | None:
    """Return the mark of a whole checkpoint; None where it is missing or torn.

    digests: False compares sizes only
    """
    read = _read(path)
    if read is None:
        return None
    mark, files = read
    try:
        whole = all((path / name).stat().st_size == entry["bytes"] for name, entry in files.items())
        if whole and digests:
            whole = all(digest_of(path / n).hex() == entry["digest"] for n, entry in files.items())
    except (OSError, KeyError, TypeError):
        return None
    complete = OPTIMIZER in files and (MODEL in files or ADAPTER in files)
    return mark if whole and complete else None


def _order(path: Path) -> tuple[int, int]:
    """Return epoch and step of a checkpoint folder's name; (−1, −1) for another name."""
    parts = path.name.split("-")
    if len(parts) == 4 and parts[1].isdigit() and parts[3].isdigit():
        return int(parts[3]), int(parts[1])
    return -1, -1


def _folders(folder: Path) -> list[Path]:
    """Return checkpoint folders, newest first: the later epoch, then the later step."""
    paths = [path for path in folder.glob("step-*-epoch-*") if path.is_dir()]
    return sorted(paths, key=_order, reverse=True)


def newest(folder: Path, run_id: str) -> tuple[Path, Mark] | None:
    """Return the newest whole checkpoint of a run; skip torn ones with a warning."""
    for path in _folders(folder):
        mark = read_mark(path)
        if mark is not None and mark.run_id == run_id:
            return path, mark
        log.warning("checkpoint %s is torn or of another run; passing it over", path)
    return None


# -- keeping --


def collect(folder: Path, epoch: int, keep: int = KEEP) -> None:
    """Remove all but the newest whole checkpoints, torn ones, and leftovers of killed writers.

    Leftovers of epochs after `epoch` stay: a later learner may be writing while an older one does
    not know yet that it is replaced.
    """
    kept = 0
    for path in _folders(folder):
        if kept < keep and read_mark(path, digests=False) is not None:
            kept += 1
        else:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".step-*-epoch-*.*"):
        if _order(Path(path.stem))[0] <= epoch:
            shutil.rmtree(path, ignore_errors=True)


def due(every: int, step: int, last_step: int, since_s: float, cost_s: float) -> bool:
    """Tell whether a checkpoint is due after `step`.

    every: steps between checkpoints; 0 for the last one's cost to be at most 5 % of the time since
    """
    if every:
        return step - last_step >= every
    return step > last_step and cost_s <= 0.05 * since_s
