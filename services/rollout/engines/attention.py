"""Attention of the tree engine: a mask per row, and grouped query heads without repeating keys and values.

With one query per row, the query heads that share a kv head become the queries of that head: the same numbers as
repeating the keys for each, at a third of the memory traffic for a model with three query heads per kv head.
"""

from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from services.rollout.engines import levels

NAME = "banyan"
_sdpa = torch.nn.functional.scaled_dot_product_attention


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, heads, Q, dim], key, value [B, kv heads, T, dim], mask [B, 1, Q, T] (None: causal) → [B, Q, heads, dim]."""
    batch, heads, queries, _ = query.shape
    shared = key.shape[1]
    if queries == 1:
        grouped = query.reshape(batch, shared, heads // shared, -1)
        if over := levels.current():
            out = levels.attend(grouped, key, value, attention_mask, scaling, over, int(module.layer_idx))  # type: ignore[arg-type]
            return out.reshape(batch, 1, heads, -1), None
        out = _sdpa(grouped, key, value, attn_mask=attention_mask, scale=scaling)
        return out.reshape(batch, 1, heads, -1), None
    causal = attention_mask is None
    out = _sdpa(query, key, value, attn_mask=attention_mask, is_causal=causal, scale=scaling, enable_gqa=heads != shared)
    return out.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
