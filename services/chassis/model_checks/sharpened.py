"""A model in float32 during a check, cut to the layers that hold one of each kind.

In bfloat16 two ways to compute one model differ by tenths of a nat, which hides most faults; in
float32 by 1e-5. All layers in float32 would take twice the model's memory in addition; those up to
the first of the last kind are a small part of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

LOW = (torch.bfloat16, torch.float16)
# Attributes that only number the layers.
_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_number", "block_idx"})


@contextmanager
def sharpened(model: PreTrainedModel) -> Iterator[None]:
    """Cut a model and make its weights float32 for the duration of the block.

    Afterwards the model has its own tensors again, never rounded.
    """
    parent, name, layers = _stack(model)
    kept = torch.nn.ModuleList(list(layers)[: first_of_each(model, layers)])
    if parent is not None:
        setattr(parent, name, kept)
    tensors = (*model.parameters(), *model.buffers())
    originals = [(tensor, tensor.data) for tensor in tensors if tensor.dtype in LOW]
    try:
        for tensor, data in originals:
            tensor.data = data.float()
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data
        if parent is not None:
            setattr(parent, name, layers)


def first_of_each(model: PreTrainedModel, layers: torch.nn.ModuleList) -> int:
    """Return the number of layers up to the first of the last kind."""
    types = getattr(model.config.get_text_config(), "layer_types", None) or [""] * len(layers)
    kinds = [
        (types[i] if i < len(types) else "", *_traits(layer)) for i, layer in enumerate(layers)
    ]
    return max((kinds.index(kind) + 1 for kind in set(kinds)), default=0)


def _traits(layer: torch.nn.Module) -> list[tuple[Any, ...]]:
    """Return the structure of a layer: its modules' settings, and the shapes of its weights."""
    settings = [
        (path, type(module).__name__, name, repr(value))
        for path, module in layer.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | None) and name not in _NUMBERS
    ]
    return [*settings, *((name, *weight.shape) for name, weight in layer.named_parameters())]


def _stack(model: PreTrainedModel) -> tuple[torch.nn.Module | None, str, torch.nn.ModuleList]:
    """Return the parent module of the layers, their attribute in it, and the layers.

    Without layers that can be recognised: None, "" and an empty list.
    """
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            parent, _, name = path.rpartition(".")
            return model.get_submodule(parent), name, module
    return None, "", torch.nn.ModuleList()
