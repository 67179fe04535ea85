"""LoRA: a base that stays as it is, and two small matrices beside each of its layers that are trained (ADR 030).

PEFT puts the matrices into the model; tensors, configuration and files are named as PEFT names them. `merged` gives the
plain model that computes the same: W + alpha / rank · B A, in float32, for engines that know no adapters and for export.
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

_NAME, _BEFORE = "default", "base_model.model."
_BASE = (".base_layer.", ".")  # PEFT's name for the layer that it put itself around


@dataclass(frozen=True, slots=True)
class BaseModel:
    """What an adapter belongs to. name: a hub id, or a folder. digest: of weights and configuration, wherever they lie."""

    name: str
    digest: str

    @classmethod
    def of(cls, folder: Path, wanted: str) -> "BaseModel":
        """The model that lies in `folder`, for which the recipe says `wanted`."""
        weights = [
            path for pattern in ("*.safetensors", "*.bin") for path in sorted(folder.glob(pattern))
        ]
        parts = b"".join(
            path.name.encode() + digest_of(path) for path in (*weights, folder / "config.json")
        )
        at_hub = (
            wanted.count("/") == 1
            and not wanted.startswith((".", "~", "/"))
            and not Path(wanted).is_dir()
        )
        return cls(wanted if at_hub else str(folder.resolve()), blake3(parts).hexdigest())


def load(
    folder: Path, lora: Lora, seed: int, kept: Path | None, base: BaseModel
) -> PreTrainedModel:
    """The base in a folder with a new adapter, or with that of a checkpoint. Raises InvalidInput, NotReady."""
    if kept is not None:
        refuse_other_base(kept, base)
    model = attach(models.load(folder), lora, seed)
    if kept is not None:
        restore(model, load_file(kept / checkpoint.ADAPTER))
    return model


def refuse_other_base(kept: Path, base: BaseModel) -> None:
    """Raises InvalidInput where a checkpoint's adapter was trained on another model."""
    digest = checkpoint.base_of(kept)
    if digest != base.digest:
        raise InvalidInput(
            f"the adapter in {kept.name} was trained on a model of digest {digest[:16]}, and {base.name} has "
            f"{base.digest[:16]}: its weights or its config.json are others; put the former ones back"
        )


def attach(model: PreTrainedModel, lora: Lora, seed: int) -> PreTrainedModel:
    """Puts an adapter into a model, and freezes the rest. B is 0, so nothing changes yet. Raises InvalidInput, NotReady."""
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
        except (
            ValueError
        ) as error:  # such as a matrix of Mamba that its kernels read past the layer
            raise InvalidInput(f"optimise.lora: {' '.join(str(error).split())}") from None
    _refuse_untrainable(model)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _refuse_unknown(model: PreTrainedModel, targets: str | Iterable[str]) -> None:
    """Raises InvalidInput for a target that is the end of no matrix's name, or that is read past the layers."""
    if isinstance(targets, str):
        return
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    known = sorted(
        {name.rsplit(".", 1)[-1] for name, layer in layers.items() if layer is not _output(model)}
    )
    for target in targets:
        found = [layer for name, layer in layers.items() if f".{name}".endswith(f".{target}")]
        if not found or _output(model) in found:
            raise InvalidInput(
                f"optimise.lora.targets: {target!r} is none of the model's matrices: {', '.join(known)}"
            )


def _output(model: PreTrainedModel) -> Any:
    return model.get_output_embeddings()  # type: ignore[no-untyped-call]


def _refuse_untrainable(model: PreTrainedModel) -> None:
    """Raises NotReady for layers that are no plain matrices."""
    for name, layer in _layers(model).items():
        if not isinstance(layer.base_layer, torch.nn.Linear):
            raise NotReady(
                f"optimise.lora: {name} is a {type(layer.base_layer).__name__}; only plain matrices are adapted"
            )


def _layers(model: PreTrainedModel) -> dict[str, Any]:
    """The layers with an adapter, by the name that they have without one."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "base_layer")}


def has(model: PreTrainedModel) -> bool:
    """Whether a model holds an adapter."""
    return bool(getattr(model, "peft_config", None))


def stored_name(name: str) -> str:
    """PEFT's name of a tensor in its file, of the model's own name for it."""
    return _BEFORE + name.replace(f".{_NAME}.", ".")


def config(model: PreTrainedModel, base: str) -> dict[str, Any]:
    """What PEFT needs to know to load the adapter again; `base`: a folder or a hub id."""
    held: Any = model.peft_config[_NAME]
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
    }
    numbers = {"r": held.r, "lora_alpha": held.lora_alpha, "lora_dropout": 0.0, "bias": "none"}
    return {**said, **numbers, "target_modules": _targets(model)}


def _targets(model: PreTrainedModel) -> list[str]:
    """Ends of names where they name the layers with an adapter and no others; else whole names."""
    held = set(_layers(model))
    ends = {name.rsplit(".", 1)[-1] for name in held}
    inner = (".lora_", ".base_layer")
    named = {
        n
        for n, _ in model.named_modules()
        if n.rsplit(".", 1)[-1] in ends and not any(i in n for i in inner)
    }
    return sorted(ends if named == held else held)


@torch.no_grad()
def restore(model: PreTrainedModel, held: Mapping[str, torch.Tensor]) -> None:
    """Takes an adapter's tensors, named as PEFT names them. Raises InvalidInput for those of another adapter."""
    own = {stored_name(name): p for name, p in model.named_parameters() if ".lora_" in name}
    odd = sorted(set(own) ^ set(held)) or sorted(
        n for n, p in own.items() if p.shape != held[n].shape
    )
    if odd:
        raise InvalidInput(
            f"the adapter does not fit the recipe's optimise.lora and model: {odd[0]} is not of both"
        )
    for name, parameter in own.items():
        parameter.copy_(held[name])


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix with an adapter: the names that A and B have in the model, and the factor of B A."""

    a: str
    b: str
    scaling: float

    @torch.no_grad()
    def merged(self, weight: torch.Tensor, trained: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The base's matrix with B A added in float32, in the base's precision. `trained`: exact tensors by name."""
        a, b = (trained[name].detach().to(weight.device) for name in (self.a, self.b))
        return (b @ a).mul_(self.scaling).add_(weight).to(weight.dtype)


def matrices(model: PreTrainedModel) -> dict[str, Matrix]:
    """Those with an adapter, by the name that they have without one."""

    def found(name: str, layer: Any) -> Matrix:
        return Matrix(
            f"{name}.lora_A.{_NAME}.weight", f"{name}.lora_B.{_NAME}.weight", layer.scaling[_NAME]
        )

    return {f"{name}.weight": found(name, layer) for name, layer in _layers(model).items()}


@torch.no_grad()
def sizes(model: PreTrainedModel, trained: Mapping[str, torch.Tensor]) -> tuple[float, float]:
    """Squares, summed over the matrices with an adapter: of the base's W, and of s (dB A + B dA), by which a step moves
    W + s B A where every number of dA and dB is 1 or -1. Of their signs the mean is taken: s² (rows |A|² + columns |B|²).

    trained: exact tensors by name. Of what is sharded this rank's rows are taken; over ranks the sums add up.
    """
    base, moved = 0.0, 0.0
    for layer, matrix in zip(_layers(model).values(), matrices(model).values(), strict=True):
        weight = layer.base_layer.weight
        rows, columns = weight.shape
        base += _square(weight.to_local() if hasattr(weight, "to_local") else weight)
        moved += matrix.scaling**2 * (
            rows * _square(trained[matrix.a]) + columns * _square(trained[matrix.b])
        )
    return base, moved


def _square(tensor: torch.Tensor) -> float:
    return (
        float(
            torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
        )
        ** 2
    )


def plain_name(name: str) -> str:
    """A base tensor's name in the model without an adapter."""
    return name.replace(*_BASE)


@torch.no_grad()
def merged(model: PreTrainedModel, trained: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All tensors of the plain model that computes the same, by its own names. `trained`: the adapter's exact tensors, by
    the names that they have in the model."""
    state = model.state_dict()
    plain = {
        plain_name(name): tensor.detach() for name, tensor in state.items() if ".lora_" not in name
    }
    return plain | {
        name: matrix.merged(plain[name], trained) for name, matrix in matrices(model).items()
    }
