"""A layer's score settings, and the attention that no fused kernel computes.

A soft cap c bends scores: c · tanh(score / c) (Gemma 2, arXiv 2408.00118, section 2). A sink is one
more score of each query, without a value (gpt-oss): it only takes its share of the softmax, so it
scales the output by sigmoid(lse − sink).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

_NUMBERS = 1 << 25  # scores in memory at a time: 128 MiB in float32


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Settings of attention scores.

    scale: their factor.
    cap: the soft cap, if any.
    sink_H: one number a query head, if the layer has sinks.
    """

    scale: float
    cap: float | None = None
    sink_H: torch.Tensor | None = None

    @property
    def fusible(self) -> bool:
        """Whether a fused kernel computes them."""
        return self.cap is None and self.sink_H is None

    def drained(self, output: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        """Scale the output [B, heads, Q, dim] by the share that the sinks leave.

        lse [B, heads, Q], in float32, is without the sinks.
        """
        if self.sink_H is None:
            return output
        share = torch.sigmoid(lse - self.sink_H.float()[None, :, None])
        return (output * share[..., None]).to(output.dtype)


def unfused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention with its scores in float32, and their log-sum-exp without sinks.

    query [B, heads, Q, dim], key, value [B, kv heads, T, dim], mask [B, 1, Q or 1, T]
    → [B, heads, Q, dim], [B, heads, Q].
    """
    batch, heads, queries, dim = query.shape
    kv_heads = key.shape[1]
    if heads == kv_heads:
        grouped = query[:, :, None]
    else:
        grouped = query.view(batch, kv_heads, heads // kv_heads, queries, dim)
    outputs, sums = [], []
    for chunk in _chunks(grouped, key):
        chunk_mask = _chunk_of_mask(mask, chunk)
        output, lse = _grouped(grouped[..., chunk, :], key, value, chunk_mask, scores)
        outputs.append(output)
        sums.append(lse)
    output, lse = torch.cat(outputs, 3), torch.cat(sums, 3)
    return output.reshape(batch, heads, queries, -1), lse.reshape(batch, heads, queries)


def _grouped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scores: Scores,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same for query [B, kv heads, group, Q, dim]."""
    transposed = key.float().transpose(-1, -2)[:, :, None]
    logits = torch.matmul(query.float(), transposed).mul_(scores.scale)
    if scores.cap is not None:
        logits = logits.div_(scores.cap).tanh_().mul_(scores.cap)
    if mask is not None:  # filled with a finite number, as a block may be masked entirely
        logits = logits.masked_fill_(~mask[:, :, None], torch.finfo(torch.float32).min)
    lse = logits.logsumexp(-1)
    weights = logits.sub_(lse[..., None]).exp_().to(value.dtype)
    return torch.matmul(weights, value[:, :, None]), lse


def _chunks(grouped: torch.Tensor, key: torch.Tensor) -> Iterator[slice]:
    """Yield slices of queries whose scores fit into memory."""
    queries = grouped.shape[3]
    size = max(1, _NUMBERS // max(1, grouped[..., 0, 0].numel() * key.shape[2]))
    return (slice(at, min(at + size, queries)) for at in range(0, queries, size))


def _chunk_of_mask(mask: torch.Tensor | None, queries: slice) -> torch.Tensor | None:
    """Return a mask's part for some queries; a mask with one query row applies to all."""
    return mask if mask is None or mask.shape[2] == 1 else mask[:, :, queries]
