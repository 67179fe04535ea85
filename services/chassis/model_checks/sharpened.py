"""A model in float32, as far as it has one layer of each kind, for as long as somebody looks closely.

In bfloat16 two ways to compute one model differ by tenths of a nat, which hides most faults; in float32 by 1e-5. All layers
in float32 would be twice the model's memory once more; those up to the first of the last kind are a small part of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

LOW = (torch.bfloat16, torch.float16)
_NAMES = frozenset(
    {"layer_idx", "layer_id", "layer_number", "block_idx"}
)  # what only says which layer it is


@contextmanager
def sharpened(model: PreTrainedModel) -> Iterator[None]:
    """Cuts a model and makes its weights float32; they are the same tensors as before afterwards, never rounded."""
    where, name, layers = _stack(model)
    kept = torch.nn.ModuleList(list(layers)[: first_of_each(model, layers)])
    if where is not None:
        setattr(where, name, kept)
    held = [(t, t.data) for t in (*model.parameters(), *model.buffers()) if t.dtype in LOW]
    try:
        for tensor, data in held:
            tensor.data = data.float()
        yield
    finally:
        for tensor, data in held:
            tensor.data = data
        if where is not None:
            setattr(where, name, layers)


def first_of_each(model: PreTrainedModel, layers: torch.nn.ModuleList) -> int:
    """How many layers there are up to the first of the last kind."""
    types = getattr(model.config.get_text_config(), "layer_types", None) or [""] * len(layers)
    seen = [(types[i] if i < len(types) else "", *_traits(layer)) for i, layer in enumerate(layers)]
    return max((seen.index(kind) + 1 for kind in set(seen)), default=0)


def _traits(layer: torch.nn.Module) -> list[tuple[Any, ...]]:
    """The structure of a layer: its modules with their settings, and the shapes of its weights."""
    settings = [
        (where, type(module).__name__, name, repr(value))
        for where, module in layer.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | None) and name not in _NAMES
    ]
    return [*settings, *((name, *weight.shape) for name, weight in layer.named_parameters())]


def _stack(model: PreTrainedModel) -> tuple[torch.nn.Module | None, str, torch.nn.ModuleList]:
    """The module that holds the layers, the name by which it does, and the layers; none where they are not found."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            where, _, name = path.rpartition(".")
            return model.get_submodule(where), name, module
    return None, "", torch.nn.ModuleList()
