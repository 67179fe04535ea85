"""A layer's settings of its scores, and the attention that no fused kernel does.

A soft cap c bends scores: c · tanh(score / c) (Gemma 2, arXiv 2408.00118, section 2). A sink is one more score of each query
that has no value (gpt-oss): it only takes its share of the softmax, so it scales the output by sigmoid(lse − sink).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

_NUMBERS = 1 << 25  # scores held at a time: 128 MiB in float32


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """scale: their factor; cap: the soft cap; sink_H: one number a query head."""

    scale: float
    cap: float | None = None
    sink_H: torch.Tensor | None = None

    @property
    def fusible(self) -> bool:
        """Whether a fused kernel computes them."""
        return self.cap is None and self.sink_H is None

    def drained(self, seen: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        """What is left of the output [B, heads, Q, dim] beside the sinks; lse [B, heads, Q], in float32, is without them."""
        if self.sink_H is None:
            return seen
        share = torch.sigmoid(lse - self.sink_H.float()[None, :, None])
        return (seen * share[..., None]).to(seen.dtype)


def held(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with its scores in float32, and their log-sum-exp without sinks.

    query [B, heads, Q, dim], key, value [B, kv heads, T, dim], mask [B, 1, Q or 1, T] → [B, heads, Q, dim], [B, heads, Q].
    """
    batch, heads, queries, dim = query.shape
    shared = key.shape[1]
    grouped = (
        query.view(batch, shared, heads // shared, queries, dim)
        if heads != shared
        else query[:, :, None]
    )
    parts = [
        _held(grouped[..., some, :], key, value, _of(mask, some), scores)
        for some in _runs(grouped, key)
    ]
    seen, sums = (torch.cat(some, 3) for some in zip(*parts, strict=True))
    return seen.reshape(batch, heads, queries, -1), sums.reshape(batch, heads, queries)


def _held(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [B, kv heads, group, Q, dim]."""
    found = torch.matmul(query.float(), key.float().transpose(-1, -2)[:, :, None]).mul_(
        scores.scale
    )
    if scores.cap is not None:
        found = found.div_(scores.cap).tanh_().mul_(scores.cap)
    if mask is not None:
        found = found.masked_fill_(
            ~mask[:, :, None], torch.finfo(torch.float32).min
        )  # finite: a block may be hidden whole
    lse = found.logsumexp(-1)
    return torch.matmul(found.sub_(lse[..., None]).exp_().to(value.dtype), value[:, :, None]), lse


def _runs(grouped: torch.Tensor, key: torch.Tensor) -> Iterator[slice]:
    """As many queries at a time as scores may be held."""
    queries = grouped.shape[3]
    size = max(1, _NUMBERS // max(1, grouped[..., 0, 0].numel() * key.shape[2]))
    return (slice(at, min(at + size, queries)) for at in range(0, queries, size))


def _of(mask: torch.Tensor | None, queries: slice) -> torch.Tensor | None:
    """A mask's part for some queries; one row is for all."""
    return mask if mask is None or mask.shape[2] == 1 else mask[:, :, queries]
