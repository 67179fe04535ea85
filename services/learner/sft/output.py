"""The folder of a warm-started model: a Hugging Face model, and in `sft.json` what it comes from.

It is written aside and renamed, so a kill at any byte leaves no half of it, and an older folder is
replaced only by a whole one.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from banyan.errors import InvalidInput, TemporaryError
from services.chassis.model_checks import model_files
from services.learner.checkpoints import checkpoint, safetensors_writer

RECORD, LEAVES = "sft.json", "sft_leaves.jsonl"


def refuse_existing(to: Path, force: bool) -> None:
    """Raise InvalidInput for a folder that must not be replaced.

    With `force`, only a folder that a warm start wrote may be.
    """
    if not to.exists() or (to.is_dir() and not any(to.iterdir())):
        return
    if not force:
        raise InvalidInput(f"--to {to} exists; name a new folder, or replace it with --force")
    if not (to / RECORD).is_file():
        raise InvalidInput(
            f"--to {to} exists and has no {RECORD}, so it is no warm-started model; --force "
            "replaces only such, name a new folder"
        )


def write(
    to: Path,
    base: Path,
    weights: Mapping[str, torch.Tensor],
    record: Mapping[str, Any],
    *,
    leaves: Iterable[Mapping[str, Any]] = (),
    force: bool = False,
) -> None:
    """Write the folder `to`. Raises TemporaryError on failure, and then leaves nothing behind.

    base: folder of the base model, whose configuration and tokenizer are copied
    record: facts of sft.json, to which the digest of the weights is added
    leaves: leaves of a stored run, a line each
    """
    refuse_existing(to, force)
    aside = to.with_name(f".{to.name}.{os.getpid()}.partial")
    try:
        _fill(aside, base, weights, record, leaves)
        _move(aside, to)
    except OSError as error:
        cause = error.strerror or error
        raise TemporaryError(f"cannot write {to}: {cause}; is there room?") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _fill(
    aside: Path,
    base: Path,
    weights: Mapping[str, torch.Tensor],
    record: Mapping[str, Any],
    leaves: Iterable[Mapping[str, Any]],
) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for source in checkpoint.beside(base, whole=True):
        shutil.copyfile(source, aside / source.name)
    model_files.say_float32(aside)
    size, digest = safetensors_writer.write(aside / checkpoint.MODEL, weights)
    lines = [json.dumps(dict(leaf)) + "\n" for leaf in leaves]
    if lines:
        (aside / LEAVES).write_text("".join(lines))
    written = {"bytes": size, "blake3": digest.hex()}
    (aside / RECORD).write_text(json.dumps({**record, "weights": written}, indent=1) + "\n")
    for path in [*aside.iterdir(), aside]:
        _fsync(path)


def _move(aside: Path, to: Path) -> None:
    """Give the folder its name; an older one makes room first, and goes when that has worked."""
    older = to.with_name(f".{to.name}.{os.getpid()}.older")
    if to.exists():
        os.rename(to, older)
    try:
        os.rename(aside, to)
    except OSError:
        if older.exists():
            os.rename(older, to)
        raise
    _fsync(to.parent)
    shutil.rmtree(older, ignore_errors=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
