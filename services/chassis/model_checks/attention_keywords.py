"""The keywords of an attention call that may be ignored; all others are refused by name.

transformers passes a model's peculiarities to its attention function as keywords
(AttentionInterface, ADR 044). A function that ignores one silently computes another model.
"""

from collections.abc import Mapping
from typing import Any

import torch

from banyan.errors import NotReady

_HARMLESS = frozenset(
    {"cache_position", "output_hidden_states", "output_router_logits", "position_ids", "use_cache"}
)
"""Keywords without effect on scores: positions are in queries and keys already, the others concern
the model around its layers."""

_NEUTRAL: Mapping[str, Any] = {"is_causal": True, "output_attentions": False}
"""Values with which a keyword asks for the default."""


def check(
    module: torch.nn.Module,
    reader: str,
    keywords: Mapping[str, Any],
    dropout: float = 0.0,
    mask: torch.Tensor | None = None,
) -> None:
    """Raise NotReady unless an attention call has the same meaning without these keywords.

    reader: name of the attention function in a message.
    keywords: keywords of the call that the function does not interpret.
    mask: booleans, the same for all heads; any other mask is added to the scores.
    """
    if mask is not None and (mask.dtype != torch.bool or mask.shape[1] != 1):
        raise _refusal(module, reader, "attention_mask", mask)
    if dropout and module.training:
        raise _refusal(module, reader, "dropout", dropout)
    if keywords.get("is_causal") is None and not getattr(module, "is_causal", True):
        raise _refusal(module, reader, "is_causal", False)
    for name, value in keywords.items():
        is_default = name in _NEUTRAL and value is _NEUTRAL[name]
        if not (value is None or name in _HARMLESS or is_default):
            raise _refusal(module, reader, name, value)


def _refusal(module: torch.nn.Module, reader: str, name: str, value: Any) -> NotReady:
    kind = getattr(getattr(module, "config", None), "model_type", "unknown")
    return NotReady(
        f"model type {kind!r}: {type(module).__name__} attends with {name} = {_short(value)},"
        f" which {reader} does not do; take another model"
    )


def _short(value: Any) -> str:
    """Return a short description of a value."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} numbers of shape {tuple(value.shape)}"
    return repr(value)[:80]
