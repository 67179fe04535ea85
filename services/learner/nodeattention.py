"""Attention node by node: a node's queries against its own keys, and its subtree's queries against them, without a mask.

Each product is one call of PyTorch's fused kernel for CPUs, which says with its output the log-sum-exp of its scores. A
token's parts (its own node's, and one of each node above) are merged by these. The backward pass calls the kernel's own
with the merged output and log-sum-exp, so each part's gradient is exact, and no probability is ever stored.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from services.learner.spans import Calls, Own

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class _NodeAttention(torch.autograd.Function):
    """[1, heads, tokens, width] each; the output is [1, tokens, heads, width]."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, made: Calls, scale: float
    ) -> torch.Tensor:
        seen, total = _own(query, key, value, made, scale)
        for span in made.below:
            keys, rest = slice(span.start, span.stop), slice(span.stop, span.end)
            part, said = _forward(query[:, :, rest], key[:, :, keys], value[:, :, keys], scale=scale)
            _merge(seen[:, :, rest], total[:, :, rest], part, said)
        out = seen.transpose(1, 2).to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.made, ctx.scale = made, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, total = ctx.saved_tensors
        grad, out = grad.transpose(1, 2), out.transpose(1, 2)
        wide = torch.promote_types(query.dtype, torch.float32)
        found = [torch.empty_like(x, dtype=wide) for x in (query, key, value)]
        for own in ctx.made.own:
            parts = [_apart(x, own) for x in (grad, query, key, value, out)]
            made = _backward(*parts, _apart(total[..., None], own)[..., 0], 0.0, True, scale=ctx.scale)
            for whole, part in zip(found, made, strict=True):
                _apart(whole, own).copy_(part)
        for span in ctx.made.below:
            keys, rest = slice(span.start, span.stop), slice(span.stop, span.end)
            given = [grad[:, :, rest], query[:, :, rest], key[:, :, keys], value[:, :, keys], out[:, :, rest]]
            made = _backward(*given, total[:, :, rest], 0.0, False, scale=ctx.scale)
            for whole, part, at in zip(found, made, (rest, keys, keys), strict=True):
                whole[:, :, at] += part
        return (*(x.to(query.dtype) for x in found), None, None)


def _own(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, made: Calls, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every node with itself: output [1, heads, tokens, width] and log-sum-exp [1, heads, tokens], both wide."""
    wide = torch.promote_types(query.dtype, torch.float32)
    one, heads, tokens, width = query.shape
    seen = torch.empty(one, tokens, heads, width, dtype=wide, device=query.device).transpose(1, 2)
    total = torch.empty(one, tokens, heads, dtype=wide, device=query.device).transpose(1, 2)
    for own in made.own:
        part, said = _forward(*(_apart(x, own) for x in (query, key, value)), is_causal=True, scale=scale)
        _apart(seen, own).copy_(part)
        _apart(total[..., None], own).copy_(said[..., None])
    return seen, total


def _apart(tensor: torch.Tensor, own: Own) -> torch.Tensor:
    """A view [count, heads, size, width] of the nodes of one call."""
    run = tensor[0, :, own.start : own.stop]
    return run.view(len(run), own.count, own.size, run.shape[2]).transpose(0, 1)


def _merge(seen: torch.Tensor, total: torch.Tensor, part: torch.Tensor, said: torch.Tensor) -> None:
    """Takes in what a part of the keys gave: both are weighted by their share of the sum of exponentials."""
    seen.lerp_(part.to(seen.dtype), torch.sigmoid(said - total)[..., None])
    torch.logaddexp(total, said, out=total)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, made: Calls, scale: float) -> torch.Tensor:
    """Tree attention of one row, [1, heads, tokens, width] → [1, tokens, heads, width]; equally many heads in all."""
    same = (x.to(value.dtype) for x in (query, key))  # autocast turns rotated ones to float32
    return _NodeAttention.apply(*same, value, made, scale)  # type: ignore[no-any-return,no-untyped-call]
