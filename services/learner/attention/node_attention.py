"""Attention node by node: a long node's queries against its own keys, and its subtree's queries against them, without a
mask; units of short nodes against themselves and what is above them, with one.

Each product of long nodes is one call of PyTorch's fused kernel for CPUs, which says with its output the log-sum-exp of its
scores. Units are plain batched products in float32: to that kernel they would be a few queries at a time. A token's parts
(its unit's, and one of each long node above) are merged by their log-sum-exp. The backward pass takes the merged output and
log-sum-exp, so each part's gradient is exact, and no probability is stored from one pass to the other.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from services.learner.attention.blocks import Units
from services.learner.attention.matmuls import Calls, Own

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Part:
    """Some units of one shape. Tensors of a row: [1, heads, tokens, width], of a part: [units, heads, …]."""

    def __init__(self, made: Units, units: slice) -> None:
        query_U_Q, kept_U_Q, key_U_K = (
            x[units] for x in (made.query_U_Q, made.kept_U_Q, made.key_U_K)
        )
        self.units = len(query_U_Q)
        self.query, self.key = (torch.from_numpy(x).flatten() for x in (query_U_Q, key_U_K))
        self.kept = None if kept_U_Q.all() else torch.from_numpy(kept_U_Q).flatten().nonzero()[:, 0]
        self.place = self.query if self.kept is None else self.query[self.kept]
        self.hidden = torch.from_numpy(~made.sees(units))[:, None]

    def taken(self, tensor: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """[units, heads, places of a unit, width], in at least float32."""
        found = tensor[0].transpose(0, 1).index_select(0, place)
        found = found.to(torch.promote_types(tensor.dtype, torch.float32))
        return found.view(self.units, -1, *found.shape[1:]).transpose(1, 2)

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """[units, heads, queries, keys]; −inf where a query does not see a key."""
        return torch.matmul(query, key.transpose(2, 3)).masked_fill_(self.hidden, float("-inf"))

    def slope(self, grad: torch.Tensor) -> torch.Tensor:
        """The queries' gradients; those that only fill up have none."""
        found = self.taken(grad, self.query)
        if self.kept is None:
            return found
        left = torch.zeros(len(self.query), dtype=found.dtype).index_fill_(0, self.kept, 1.0)
        return found * left.view(self.units, 1, -1, 1)

    def put(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """What was computed of the queries, to their places."""
        rows = _rows(part)
        whole[0].transpose(0, 1).index_copy_(
            0, self.place, rows if self.kept is None else rows[self.kept]
        )

    def add(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Gradients of the keys, to their places: several units have the same ones above them."""
        rows = _rows(part).flatten(1)
        at = self.key[:, None].expand(-1, rows.shape[1])
        whole[0].transpose(0, 1).view(whole.shape[2], -1).scatter_add_(0, at, rows)


def _rows(part: torch.Tensor) -> torch.Tensor:
    return part.transpose(1, 2).reshape(-1, part.shape[1], part.shape[3])


def _parts(made: Units) -> Iterator[Part]:
    """As many units at a time as their scores may take."""
    return (
        Part(made, slice(at, at + made.at_once))
        for at in range(0, len(made.query_U_Q), made.at_once)
    )


class Products:
    """A row's products as the kernel takes them, made once for all layers."""

    def __init__(self, made: Calls) -> None:
        self.own, self.below = made.own, made.below
        self.parts = tuple(part for one in made.stacks for part in _parts(one))


class _NodeAttention(torch.autograd.Function):
    """[1, heads, tokens, width] each; the output is [1, tokens, heads, width]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        made: Products,
        scale: float,
    ) -> torch.Tensor:
        seen, total = _first(query, key, value, made, scale)
        for span in made.below:
            keys, rest = slice(span.start, span.stop), slice(span.stop, span.end)
            part, said = _forward(
                query[:, :, rest], key[:, :, keys], value[:, :, keys], scale=scale
            )
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
        found = [_wide(query), *(_wide(x, zero=bool(ctx.made.parts)) for x in (key, value))]
        for own in ctx.made.own:
            parts = [_apart(x, own) for x in (grad, query, key, value, out)]
            made = _backward(
                *parts, _apart(total[..., None], own)[..., 0], 0.0, True, scale=ctx.scale
            )
            for whole, part in zip(found, made, strict=True):
                _apart(whole, own).copy_(part)
        for part in ctx.made.parts:
            _back(part, found, (grad, query, key, value, out, total), ctx.scale)
        for span in ctx.made.below:
            keys, rest = slice(span.start, span.stop), slice(span.stop, span.end)
            given = [
                grad[:, :, rest],
                query[:, :, rest],
                key[:, :, keys],
                value[:, :, keys],
                out[:, :, rest],
            ]
            made = _backward(*given, total[:, :, rest], 0.0, False, scale=ctx.scale)
            for whole, part, at in zip(found, made, (rest, keys, keys), strict=True):
                whole[:, :, at] += part
        return (*(x.to(query.dtype) for x in found), None, None)


def _back(
    part: Part, found: list[torch.Tensor], saved: tuple[torch.Tensor, ...], scale: float
) -> None:
    """Gradients of the units' queries; those of their keys are added to what is there."""
    grad, query, key, value, out, total = saved
    slope, q = part.slope(grad), part.taken(query, part.query).mul_(scale)
    k, v = part.taken(key, part.key), part.taken(value, part.key)
    weight = part.scores(q, k).sub_(part.taken(total[..., None], part.query)).exp_()
    drawn = (slope * part.taken(out, part.query)).sum(-1, keepdim=True)
    part.add(found[2], torch.matmul(weight.transpose(2, 3), slope))
    weight *= torch.matmul(slope, v.transpose(2, 3)).sub_(drawn)
    part.put(found[0], torch.matmul(weight, k).mul_(scale))
    part.add(found[1], torch.matmul(weight.transpose(2, 3), q))


def _first(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, made: Products, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Long nodes with themselves, units with what they see: [1, heads, tokens, width] and log-sum-exp [1, heads, tokens]."""
    seen, total = _wide(query), _wide(query[..., :1])
    for own in made.own:
        part, said = _forward(
            *(_apart(x, own) for x in (query, key, value)), is_causal=True, scale=scale
        )
        _apart(seen, own).copy_(part)
        _apart(total, own).copy_(said[..., None])
    for units in made.parts:
        k, v = units.taken(key, units.key), units.taken(value, units.key)
        weight = units.scores(units.taken(query, units.query).mul_(scale), k)
        most = weight.amax(-1, keepdim=True)
        sums = weight.sub_(most).exp_().sum(-1, keepdim=True)
        units.put(seen, torch.matmul(weight, v).div_(sums))
        units.put(total, most + sums.log())
    return seen, total[..., 0]


def _wide(like: torch.Tensor, zero: bool = False) -> torch.Tensor:
    """[1, heads, tokens, width] in at least float32, a token's heads side by side."""
    one, heads, tokens, width = like.shape
    make = torch.zeros if zero else torch.empty
    wide = torch.promote_types(like.dtype, torch.float32)
    return make(one, tokens, heads, width, dtype=wide, device=like.device).transpose(1, 2)


def _apart(tensor: torch.Tensor, own: Own) -> torch.Tensor:
    """A view [count, heads, size, width] of the nodes of one call."""
    run = tensor[0, :, own.start : own.stop]
    return run.view(len(run), own.count, own.size, run.shape[2]).transpose(0, 1)


def _merge(seen: torch.Tensor, total: torch.Tensor, part: torch.Tensor, said: torch.Tensor) -> None:
    """Takes in what a part of the keys gave: both are weighted by their share of the sum of exponentials."""
    seen.lerp_(part.to(seen.dtype), torch.sigmoid(said - total)[..., None])
    torch.logaddexp(total, said, out=total)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, made: Products, scale: float
) -> torch.Tensor:
    """Tree attention of one row, [1, heads, tokens, width] → [1, tokens, heads, width]; equally many heads in all.

    The kernel wants one width: narrower values (latent attention, DeepSeek) or queries are filled up with zeros, which add
    nothing to scores, and columns of zeros to the output.
    """
    width = max(query.shape[-1], value.shape[-1])
    filled = (
        pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (query, key, value)
    )
    same = (x.to(value.dtype) for x in filled)  # autocast turns rotated ones to float32
    whole = (
        x if x.stride(-1) == 1 else x.contiguous() for x in same
    )  # the kernel reads on without asking
    with torch.autocast(value.device.type, enabled=False):
        seen = _NodeAttention.apply(*whole, made, scale)  # type: ignore[no-untyped-call]
    return seen[..., : value.shape[-1]]  # type: ignore[no-any-return]
