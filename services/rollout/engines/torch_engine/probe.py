"""Inspection of a model: the kinds of its layers, and the shape of its cache."""

from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from banyan.errors import NotReady
from services.rollout.engines.torch_engine import attention
from services.rollout.engines.torch_engine.kv.kv_slots import KVShape

_TOKENS = 2


def layer_kinds(model: PreTrainedModel) -> set[str]:
    """Return the kinds of a model's layers. Raise NotReady for kinds whose state is no KV."""
    text = model.config.get_text_config()
    layer_types = getattr(text, "layer_types", None)
    kinds = set(layer_types or ["full_attention"])
    unknown = sorted(kinds - {"full_attention", "sliding_attention"})
    if unknown:
        raise NotReady(
            f"model type {text.model_type} has {unknown[0]} layers, whose state the tree engine"
            " cannot share"
        )
    if not layer_types and getattr(text, "sliding_window", None):
        kinds = {"sliding_attention"}
    return kinds


@torch.inference_mode()
def probe(model: PreTrainedModel, device: torch.device) -> tuple[KVShape, bool]:
    """Return the shape of a model's cache, and whether its layers attend to exactly that.

    Runs two tokens. Layers that cache less than they attend to (latent attention), attend to parts
    of it, or do not use our attention do not. Raise NotReady where layers have different shapes.
    """
    cache = DynamicCache()
    ids = torch.zeros(1, _TOKENS, dtype=torch.long, device=device)
    with attention.recorded() as calls:
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    cached = [
        (getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers
    ]
    shapes = {
        (keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)
        for keys, values in cached
        if keys is not None and values is not None
    }
    if len(shapes) != 1:
        raise NotReady(
            f"model type {model.config.model_type} caches layers of {len(shapes)} shapes; the tree"
            " engine needs one"
        )
    heads, key_dim, value_dim, dtype = shapes.pop()
    shape = KVShape(
        layers=len(cached),
        heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        dtype=dtype,
        device=device,
    )
    exact = len(calls) == len(cached) and all(_is_cached(call, cached) for call in calls)
    return shape, exact


def _is_cached(
    call: attention.LayerKv, cached: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]]
) -> bool:
    layer, key, value = call
    if layer is None:
        return False
    cached_key, cached_value = cached[layer]
    if cached_key is None or cached_value is None:
        return False
    return torch.equal(key, cached_key) and torch.equal(value, cached_value)
