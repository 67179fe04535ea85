"""Merges an adapter and its base into a plain model's folder, which transformers alone loads."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from banyan.recipe import Lora
from services.chassis.model_checks import model_files
from services.learner.checkpoints import checkpoint, safetensors_writer
from services.learner.model import load as models
from services.learner.model import lora as adapter


def write(kept: Path, base: Path, name: str, to: Path) -> None:
    """Write the model that a checkpoint's adapter and the base compute together, in float32.

    The folder gets the base's configuration and tokenizer. `name`: of the base in the recipe.
    Raise InvalidInput for another base.
    """
    adapter.refuse_other_base(kept, adapter.BaseModel.of(base, name))
    config = json.loads((kept / checkpoint.CONFIG).read_text())
    lora = Lora(rank=config["r"], alpha=config["lora_alpha"], targets=config["target_modules"])
    merged = tensors(base, lora, load_file(kept / checkpoint.ADAPTER))
    to.mkdir(parents=True, exist_ok=True)
    safetensors_writer.write(to / checkpoint.MODEL, merged)
    for source in checkpoint.beside(base, whole=True):
        shutil.copyfile(source, to / source.name)
    model_files.say_float32(to)


def tensors(base: Path, lora: Lora, trained: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the float32 tensors of the plain model, once each.

    trained: the adapter's, by PEFT's names
    """
    model = adapter.attach(models.load(base), lora, seed=0)
    adapter.restore(model, trained)
    return _without_tied(adapter.merged(model, dict(model.named_parameters())))


def _without_tied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors without the second names of tied ones."""
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in tensors.items():
        first.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {name: tensors[name] for name in first.values()}
