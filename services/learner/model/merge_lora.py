"""An adapter and its base → the plain model's folder, which transformers alone loads."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from banyan.recipe import Lora
from services.chassis.model_checks import model_files
from services.learner.checkpoints import checkpoint, safetensors_writer
from services.learner.model import load as models
from services.learner.model import lora as adapter


def write(kept: Path, base: Path, name: str, to: Path) -> None:
    """Writes the model that a checkpoint's adapter and the base compute together, in float32, with the base's configuration
    and tokenizer. `name`: of the base in the recipe. Raises InvalidInput where it is another base."""
    adapter.refuse_other_base(kept, adapter.BaseModel.of(base, name))
    said = json.loads((kept / checkpoint.CONFIG).read_text())
    lora = Lora(rank=said["r"], alpha=said["lora_alpha"], targets=said["target_modules"])
    model = adapter.attach(models.load(base), lora, seed=0)
    adapter.restore(model, load_file(kept / checkpoint.ADAPTER))
    to.mkdir(parents=True, exist_ok=True)
    safetensors_writer.write(
        to / checkpoint.MODEL, _once(adapter.merged(model, dict(model.named_parameters())))
    )
    for source in checkpoint.beside(base, whole=True):
        shutil.copyfile(source, to / source.name)
    model_files.say_float32(to)


def _once(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the second names of tied tensors."""
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in tensors.items():
        first.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {name: tensors[name] for name in first.values()}
