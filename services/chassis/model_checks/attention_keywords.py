"""The keywords of an attention call that are understood. All others are refused by name.

transformers hands what is special about a model to its attention function as keywords (AttentionInterface, docs/adr/044). A
function that swallows one that it does not know computes another model without a word.
"""

from collections.abc import Mapping
from typing import Any

import torch

from banyan.errors import NotReady

_HARMLESS = frozenset(
    {"cache_position", "output_hidden_states", "output_router_logits", "position_ids", "use_cache"}
)
"""They say nothing of scores: positions are in queries and keys already, the rest is for the model around its layers."""

_NEUTRAL: Mapping[str, Any] = {"is_causal": True, "output_attentions": False}
"""Values with which a keyword asks for what is done anyway."""


def check(
    module: torch.nn.Module,
    reader: str,
    given: Mapping[str, Any],
    dropout: float = 0.0,
    mask: torch.Tensor | None = None,
) -> None:
    """Raises NotReady unless an attention call means what it means without these keywords.

    given: what came with the call and is not understood by `reader`, the function's name in a sentence. mask: booleans, the
    same for all heads; a model that makes another of it adds something to its scores.
    """
    if mask is not None and (mask.dtype != torch.bool or mask.shape[1] != 1):
        raise _refusal(module, reader, "attention_mask", mask)
    if dropout and module.training:
        raise _refusal(module, reader, "dropout", dropout)
    if given.get("is_causal") is None and not getattr(module, "is_causal", True):
        raise _refusal(module, reader, "is_causal", False)
    for name, value in given.items():
        if not (
            value is None or name in _HARMLESS or (name in _NEUTRAL and value is _NEUTRAL[name])
        ):
            raise _refusal(module, reader, name, value)


def _refusal(module: torch.nn.Module, reader: str, name: str, value: Any) -> NotReady:
    kind = getattr(getattr(module, "config", None), "model_type", "unknown")
    return NotReady(
        f"model type {kind!r}: {type(module).__name__} attends with {name} = {_said(value)}, which {reader} does not do;"
        " take another model"
    )


def _said(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} numbers of shape {tuple(value.shape)}"
    return repr(value)[:80]
