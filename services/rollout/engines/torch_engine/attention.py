"""Attention of the torch engine: a mask per row, and grouped query heads without repeated KV.

With one query per row, the query heads that share a kv head become the queries of that head: the
same numbers as repeating the keys for each, at a third of the memory traffic for a model with three
query heads per kv head.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from services.chassis.model_checks import attention_keywords
from services.rollout.engines.torch_engine import cascade_attention, paged_attention
from services.rollout.engines.torch_engine.attention_scores import Scores, unfused
from services.rollout.engines.torch_engine.paged_attention import OwnKv

NAME = "banyan"
LayerKv = tuple[int | None, torch.Tensor, torch.Tensor]  # layer, key, value
_READER = "the torch engine"
_sdpa = torch.nn.functional.scaled_dot_product_attention


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention for a layer of a Hugging Face model.

    query [B, heads, Q, dim], key, value [B, kv heads, T, dim], mask [B, 1, Q, T] (None: causal)
    → [B, Q, heads, dim]. The window is in the mask. Raise NotReady for unknown keywords.
    """
    attention_keywords.check(module, _READER, more, dropout, attention_mask)
    if _recorder.calls is not None:
        _recorder.calls.append((getattr(module, "layer_idx", None), key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = Scores(scale=scale, cap=softcap, sink_H=s_aux)
    if query.shape[2] == 1:
        return _decode(module, query, key, value, attention_mask, scores), None
    output = _prefill(query, key, value, attention_mask, scores)
    return output.transpose(1, 2).contiguous(), None


def _decode(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> torch.Tensor:
    """Return [B, 1, heads, dim] for one query a row."""
    batch, heads, kv_heads = query.shape[0], query.shape[1], key.shape[1]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, -1)
    levels, cache = cascade_attention.current(), paged_attention.current()
    layer = int(module.layer_idx) if levels or cache is not None else 0  # type: ignore[arg-type]
    if cache is None:
        own: Iterable[OwnKv] = [OwnKv(slice(None), key, value, mask)]
    else:
        own = cache.own(layer, mask)
    if not levels and scores.fusible:
        parts = [
            _sdpa(grouped[kv.rows], kv.keys, kv.values, attn_mask=kv.mask, scale=scores.scale)
            for kv in own
        ]
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return output.reshape(batch, 1, heads, -1)
    output, lse = cascade_attention.attend(grouped, own, scores, levels, layer)
    output, lse = output.reshape(batch, heads, 1, -1), lse.reshape(batch, heads, 1)
    return scores.drained(output, lse).transpose(1, 2)


def _prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> torch.Tensor:
    """Return [B, heads, Q, dim]."""
    if scores.fusible:
        return _sdpa(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scores.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    if mask is None:
        queries, tokens = query.shape[2], key.shape[2]
        mask = torch.ones(queries, tokens, dtype=torch.bool, device=query.device).tril()[None, None]
    output, lse = unfused(query, key, value, mask, scores)
    return scores.drained(output, lse)


class _Recorder(local):
    """The attention calls of this thread's passes, while they are recorded."""

    calls: list[LayerKv] | None = None


_recorder = _Recorder()


@contextmanager
def recorded() -> Iterator[list[LayerKv]]:
    """Record (layer, key, value) of each attention call within."""
    calls: list[LayerKv] = []
    _recorder.calls = calls
    try:
        yield calls
    finally:
        _recorder.calls = None


# On import: a model is loaded with this name, and transformers looks it up at each call.
ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
