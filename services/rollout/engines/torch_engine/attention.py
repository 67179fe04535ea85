"""Attention of the tree engine: a mask per row, and grouped query heads without repeating keys and values.

With one query per row, the query heads that share a kv head become the queries of that head: the same numbers as
repeating the keys for each, at a third of the memory traffic for a model with three query heads per kv head.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from services.chassis.model_checks import attention_keywords
from services.rollout.engines.torch_engine import cascade_attention, paged_attention
from services.rollout.engines.torch_engine.attention_scores import Scores, held
from services.rollout.engines.torch_engine.paged_attention import Own

NAME = "banyan"
Seen = tuple[int | None, torch.Tensor, torch.Tensor]
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
    """query [B, heads, Q, dim], key, value [B, kv heads, T, dim], mask [B, 1, Q, T] (None: causal) → [B, Q, heads, dim].

    The window is in the mask. Raises NotReady for keywords that are not understood.
    """
    attention_keywords.check(module, _READER, more, dropout, attention_mask)
    if _here.seen is not None:
        _here.seen.append((getattr(module, "layer_idx", None), key, value))
    scores = Scores(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
    if query.shape[2] == 1:
        return _decoded(module, query, key, value, attention_mask, scores), None
    return _prefilled(query, key, value, attention_mask, scores).transpose(1, 2).contiguous(), None


def _decoded(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> torch.Tensor:
    """One query a row: [B, 1, heads, dim]."""
    batch, heads, shared = query.shape[0], query.shape[1], key.shape[1]
    grouped = query.reshape(batch, shared, heads // shared, -1)
    over, cache = cascade_attention.current(), paged_attention.current()
    layer = int(module.layer_idx) if over or cache is not None else 0  # type: ignore[arg-type]
    own: Iterable[Own] = (
        [Own(slice(None), key, value, mask)] if cache is None else cache.own(layer, mask)
    )
    if not over and scores.fusible:
        parts = [
            _sdpa(grouped[one.rows], one.keys, one.values, attn_mask=one.mask, scale=scores.scale)
            for one in own
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(batch, 1, heads, -1)
    seen, lse = cascade_attention.attend(grouped, own, scores, over, layer)
    seen = scores.drained(seen.reshape(batch, heads, 1, -1), lse.reshape(batch, heads, 1))
    return seen.transpose(1, 2)


def _prefilled(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> torch.Tensor:
    """[B, heads, Q, dim]."""
    if scores.fusible:
        grouped = query.shape[1] != key.shape[1]
        return _sdpa(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scores.scale,
            enable_gqa=grouped,
        )
    if mask is None:
        queries, tokens = query.shape[2], key.shape[2]
        mask = torch.ones(queries, tokens, dtype=torch.bool, device=query.device).tril()[None, None]
    return scores.drained(*held(query, key, value, mask, scores))


class _Here(local):
    """What the passes of this thread attend to, where somebody wants to know."""

    seen: list[Seen] | None = None


_here = _Here()


@contextmanager
def watched() -> Iterator[list[Seen]]:
    """All that passes attend to: (layer, key, value) of each call."""
    found: list[Seen] = []
    _here.seen = found
    try:
        yield found
    finally:
        _here.seen = None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
