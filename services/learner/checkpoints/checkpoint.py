"""Checkpoints: Hugging Face folders that load with `from_pretrained`, plus Adam's state and a manifest written last.
Of a run that trains an adapter: PEFT's folder, and in the manifest the digest of the base that it belongs to.

A folder `step-<step>-epoch-<epoch>` is written aside, fsynced and renamed, so a kill at any byte leaves the older ones as
they were. A folder counts only if its manifest is whole and every file has the size and digest that the manifest says.
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
_OWN = {MANIFEST, "banyan.json", "model.safetensors.index.json"}
_WHOLE = {"config.json", "generation_config.json"}  # of a model; a folder that has them is one


@dataclass(frozen=True, slots=True)
class Mark:
    """What a checkpoint holds: policy `step`, made from the batches before `next_ordinal`."""

    run_id: str
    learner_epoch: int
    step: int
    next_ordinal: int
    policy_digest: str


@dataclass(frozen=True, slots=True)
class Adapter:
    """That the weights are an adapter: PEFT's configuration of it, and the digest of its base."""

    config: Mapping[str, Any]
    base: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tensors that nobody changes any more, with their mark."""

    mark: Mark
    weights: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]
    adapter: Adapter | None = None

    def apart(self) -> "Snapshot":
        """A copy in the host's memory, so that training may go on while a thread writes it."""
        cloned = [
            {name: t.to("cpu", copy=True) for name, t in group.items()}
            for group in (self.weights, self.moments)
        ]
        return replace(self, weights=cloned[0], moments=cloned[1])


def name_of(mark: Mark) -> str:
    """Folder name of a checkpoint."""
    return f"step-{mark.step:08d}-epoch-{mark.learner_epoch}"


def write(folder: Path, snapshot: Snapshot, base: Path) -> Path:
    """Writes a checkpoint under `folder`, with config and tokenizer from `base`. Raises TemporaryError if it cannot."""
    final = folder / name_of(snapshot.mark)
    if read_mark(final) == snapshot.mark:
        collect(folder, snapshot.mark.learner_epoch)
        return final
    aside = folder / f".{final.name}.{os.getpid()}"
    begun = not folder.exists()
    try:
        _fill(aside, snapshot, base)
        shutil.rmtree(final, ignore_errors=True)  # a torn one of the same name
        os.rename(aside, final)
        _fsync(folder)
        if begun:  # a folder whose own name is not on disk is none after a power cut
            _fsync(folder.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise TemporaryError(
            f"cannot write checkpoint {final}: {error.strerror or error}; is there room?"
        ) from None
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
    files = {path.name: _said(path) for path in sorted(aside.iterdir())}
    for name, tensors in (
        (ADAPTER if adapter else MODEL, snapshot.weights),
        (OPTIMIZER, snapshot.moments),
    ):
        size, digest = safetensors_writer.write(aside / name, tensors)
        files[name] = {"bytes": size, "digest": digest.hex()}
    said: dict[str, Any] = {"format": _FORMAT, "mark": asdict(snapshot.mark), "files": files}
    text = json.dumps(said | ({"base": adapter.base} if adapter else {}), sort_keys=True)
    (aside / MANIFEST).write_text(text)
    _fsync(aside / MANIFEST)
    _fsync(aside)


def beside(base: Path, whole: bool) -> list[Path]:
    """What lies beside the weights: a model's tokenizer, and its configuration with `whole`."""
    found = {path for pattern in _COPIED for path in base.glob(pattern)}
    return sorted(
        path for path in found if path.name not in _OWN and (whole or path.name not in _WHOLE)
    )


def _said(path: Path) -> dict[str, Any]:
    _fsync(path)
    return {"bytes": path.stat().st_size, "digest": digest_of(path).hex()}


def base_of(path: Path) -> str:
    """Digest of the base that a checkpoint's adapter belongs to; empty where it holds a whole model."""
    return str(json.loads((path / MANIFEST).read_text()).get("base", ""))


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> tuple[Mark, dict[str, Any]] | None:
    try:
        said = json.loads((path / MANIFEST).read_text())
        if said["format"] != _FORMAT:
            return None
        return Mark(**said["mark"]), dict(said["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_mark(path: Path, digests: bool = True) -> Mark | None:
    """Mark of a whole checkpoint; None where it is missing or torn. `digests` False compares sizes only."""
    read = _read(path)
    if read is None:
        return None
    mark, files = read
    try:
        sizes = all((path / name).stat().st_size == said["bytes"] for name, said in files.items())
        whole = sizes and (
            not digests
            or all(digest_of(path / n).hex() == said["digest"] for n, said in files.items())
        )
    except (OSError, KeyError, TypeError):
        return None
    return mark if whole and OPTIMIZER in files and (MODEL in files or ADAPTER in files) else None


def _order(path: Path) -> tuple[int, int]:
    parts = path.name.split("-")
    return (
        (int(parts[3]), int(parts[1]))
        if len(parts) == 4 and parts[1].isdigit() and parts[3].isdigit()
        else (-1, -1)
    )


def _folders(folder: Path) -> list[Path]:
    """Checkpoint folders, newest first: the later epoch, then the later step."""
    return sorted(
        (p for p in folder.glob("step-*-epoch-*") if p.is_dir()), key=_order, reverse=True
    )


def newest(folder: Path, run_id: str) -> tuple[Path, Mark] | None:
    """The newest whole checkpoint of a run. Torn ones are passed over, and said so."""
    for path in _folders(folder):
        mark = read_mark(path)
        if mark is not None and mark.run_id == run_id:
            return path, mark
        log.warning("checkpoint %s is torn or of another run; passing it over", path)
    return None


def collect(folder: Path, epoch: int, keep: int = KEEP) -> None:
    """Removes all but the newest whole checkpoints, torn ones, and what killed writers left aside, up to the learner epoch
    `epoch`: a later learner may be writing while an older one does not know yet that it is over."""
    kept = 0
    for path in _folders(folder):
        kept += (whole := kept < keep and read_mark(path, digests=False) is not None)
        if not whole:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".step-*-epoch-*.*"):
        if _order(Path(path.stem))[0] <= epoch:
            shutil.rmtree(path, ignore_errors=True)


def due(every: int, step: int, last_step: int, since_s: float, cost_s: float) -> bool:
    """Whether a checkpoint is due after `step`. every 0: when the last one's cost is at most 5 % of the time since."""
    if every:
        return step - last_step >= every
    return step > last_step and cost_s <= 0.05 * since_s
