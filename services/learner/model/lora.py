"""LoRA: a frozen base, and two small trained matrices beside each of its layers (ADR 030).

PEFT puts the matrices into the model; tensors, configuration and files carry PEFT's names. `merged`
returns the plain model that computes the same, W + alpha / rank · B A in float32, for engines that
know no adapters and for export.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors.torch import load_file
from transformers import PreTrainedModel

from banyan.errors import InvalidInput, NotReady
from banyan.recipe import Lora
from services.chassis.weights.file import digest_of
from services.learner.checkpoints import checkpoint
from services.learner.model import load as models

_ADAPTER_NAME = "default"
_STORED_PREFIX = "base_model.model."
_WRAPPED = ".base_layer."  # PEFT's name for the layer that it wraps


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The model that an adapter belongs to.

    name: a hub id, with @revision if the recipe names one, or a folder.
    digest: digest of weights and configuration, wherever they are stored.
    """

    name: str
    digest: str

    @classmethod
    def of(cls, folder: Path, name: str) -> "BaseModel":
        """Return the model stored in `folder`, which the recipe calls `name`."""
        weights = [
            path for pattern in ("*.safetensors", "*.bin") for path in sorted(folder.glob(pattern))
        ]
        files = [*weights, folder / "config.json"]
        content = b"".join(path.name.encode() + digest_of(path) for path in files)
        is_path = name.startswith((".", "~", "/")) or Path(name).is_dir()
        is_hub_id = name.partition("@")[0].count("/") == 1 and not is_path
        return cls(name if is_hub_id else str(folder.resolve()), blake3(content).hexdigest())


def load(
    folder: Path, lora: Lora, seed: int, kept: Path | None, base: BaseModel
) -> PreTrainedModel:
    """Load the base in a folder with a new adapter, or with that of the checkpoint `kept`.

    Raise InvalidInput for an adapter of another base, and as `attach` and `restore` do.
    """
    if kept is not None:
        refuse_other_base(kept, base)
    model = attach(models.load(folder), lora, seed)
    if kept is not None:
        restore(model, load_file(kept / checkpoint.ADAPTER))
    return model


def refuse_other_base(kept: Path, base: BaseModel) -> None:
    """Raise InvalidInput if the adapter of a checkpoint was trained on another model."""
    digest = checkpoint.base_of(kept)
    if digest != base.digest:
        raise InvalidInput(
            f"the adapter in {kept.name} was trained on a model of digest {digest[:16]}, and "
            f"{base.name} has {base.digest[:16]}: its weights or its config.json are others; "
            "put the former ones back"
        )


def attach(model: PreTrainedModel, lora: Lora, seed: int) -> PreTrainedModel:
    """Add an adapter to a model, and freeze the rest. B is 0, so the model computes the same.

    Raise InvalidInput for targets that the model does not have, NotReady for layers that cannot be
    adapted yet.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    _refuse_unknown(model, targets)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:  # such as a matrix of Mamba that its kernels read directly
            raise InvalidInput(f"optimise.lora: {' '.join(str(error).split())}") from None
    _refuse_unadaptable(model)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _refuse_unknown(model: PreTrainedModel, targets: str | Iterable[str]) -> None:
    """Raise InvalidInput for a target that ends no matrix's name, or that is the output layer."""
    if isinstance(targets, str):
        return
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    known = sorted(
        {name.rsplit(".", 1)[-1] for name, layer in layers.items() if layer is not output}
    )
    for target in targets:
        matching = [layer for name, layer in layers.items() if f".{name}".endswith(f".{target}")]
        if not matching or output in matching:
            raise InvalidInput(
                f"optimise.lora.targets: {target!r} is none of the model's matrices: "
                f"{', '.join(known)}"
            )


def _refuse_unadaptable(model: PreTrainedModel) -> None:
    """Raise NotReady for adapted layers that are not plain matrices."""
    for name, layer in _layers(model).items():
        if not isinstance(layer.base_layer, torch.nn.Linear):
            raise NotReady(
                f"optimise.lora: {name} is a {type(layer.base_layer).__name__}; "
                "only plain matrices are adapted"
            )


def _layers(model: PreTrainedModel) -> dict[str, Any]:
    """Return the layers with an adapter, by their name without one."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "base_layer")}


def has(model: PreTrainedModel) -> bool:
    """Tell whether a model has an adapter."""
    return bool(getattr(model, "peft_config", None))


def stored_name(name: str) -> str:
    """Return PEFT's name in its file for a tensor of the model."""
    return _STORED_PREFIX + name.replace(f".{_ADAPTER_NAME}.", ".")


def config(model: PreTrainedModel, base: str) -> dict[str, Any]:
    """Return the configuration with which PEFT loads the adapter again.

    base: a folder or a hub id.
    """
    adapter: Any = model.peft_config[_ADAPTER_NAME]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        **named_base(base),
        "inference_mode": True,
        "r": adapter.r,
        "lora_alpha": adapter.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": _targets(model),
    }


def named_base(base: str) -> dict[str, str]:
    """Return PEFT's fields for a base, a folder or a hub id: its revision is a field of its own."""
    name, _, revision = (base, "", "") if base.startswith("/") else base.partition("@")
    return {"base_model_name_or_path": name} | ({"revision": revision} if revision else {})


def _targets(model: PreTrainedModel) -> list[str]:
    """Return ends of names if they match exactly the adapted layers, else whole names."""
    adapted = set(_layers(model))
    ends = {name.rsplit(".", 1)[-1] for name in adapted}
    matching = {
        name
        for name, _ in model.named_modules()
        if name.rsplit(".", 1)[-1] in ends and ".lora_" not in name and ".base_layer" not in name
    }
    return sorted(ends if matching == adapted else adapted)


@torch.no_grad()
def restore(model: PreTrainedModel, stored: Mapping[str, torch.Tensor]) -> None:
    """Copy an adapter's tensors, by PEFT's names, into the model.

    Raise InvalidInput for those of another adapter.
    """
    own = {stored_name(name): p for name, p in model.named_parameters() if ".lora_" in name}
    unmatched = sorted(set(own) ^ set(stored))
    if not unmatched:
        unmatched = sorted(name for name, p in own.items() if p.shape != stored[name].shape)
    if unmatched:
        raise InvalidInput(
            "the adapter does not fit the recipe's optimise.lora and model: "
            f"{unmatched[0]} is not of both"
        )
    for name, parameter in own.items():
        parameter.copy_(stored[name])


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix with an adapter.

    a, b: names of A and B in the model.
    scaling: factor of B A.
    """

    a: str
    b: str
    scaling: float

    @torch.no_grad()
    def merged(self, weight: torch.Tensor, trained: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the base's matrix with B A added in float32, in the base's precision.

        trained: exact tensors by name.
        """
        a, b = (trained[name].detach().to(weight.device) for name in (self.a, self.b))
        return (b @ a).mul_(self.scaling).add_(weight).to(weight.dtype)


def matrices(model: PreTrainedModel) -> dict[str, Matrix]:
    """Return the matrices with an adapter, by their name without one."""
    return {
        f"{name}.weight": Matrix(
            a=f"{name}.lora_A.{_ADAPTER_NAME}.weight",
            b=f"{name}.lora_B.{_ADAPTER_NAME}.weight",
            scaling=layer.scaling[_ADAPTER_NAME],
        )
        for name, layer in _layers(model).items()
    }


@torch.no_grad()
def squared_norms(
    model: PreTrainedModel, trained: Mapping[str, torch.Tensor]
) -> tuple[float, float]:
    """Return the squared norms of the adapted W, and of how far a step moves them at a rate of 1.

    A step moves W + s B A by s (dB A + B dA), with 1 or −1 for every number of dA and dB. The mean
    over their signs is s² (rows |A|² + columns |B|²). Both are summed over the matrices; of sharded
    ones this rank's rows are taken, so that sums over ranks add up.

    trained: exact tensors by name.
    """
    base, moved = 0.0, 0.0
    for layer, matrix in zip(_layers(model).values(), matrices(model).values(), strict=True):
        weight = layer.base_layer.weight
        rows, columns = weight.shape
        base += _square(weight.to_local() if hasattr(weight, "to_local") else weight)
        of_a, of_b = _square(trained[matrix.a]), _square(trained[matrix.b])
        moved += matrix.scaling**2 * (rows * of_a + columns * of_b)
    return base, moved


def _square(tensor: torch.Tensor) -> float:
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return float(torch.linalg.vector_norm(tensor, dtype=wide)) ** 2


def plain_name(name: str) -> str:
    """Return a base tensor's name in the model without an adapter."""
    return name.replace(_WRAPPED, ".")


@torch.no_grad()
def merged(model: PreTrainedModel, trained: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return all tensors of the plain model that computes the same, by its own names.

    trained: the adapter's exact tensors, by their names in the model.
    """
    plain = {
        plain_name(name): tensor.detach()
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    adapted = {
        name: matrix.merged(plain[name], trained) for name, matrix in matrices(model).items()
    }
    return plain | adapted
