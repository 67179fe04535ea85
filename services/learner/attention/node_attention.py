"""Attention node by node (ADR 029, ADR 038).

Queries of a long node meet its own keys, and queries of its subtree meet them too, without a mask;
units of short nodes meet themselves and the short nodes above, with one.

Each product of long nodes is one call of PyTorch's fused kernel for CPUs, which returns the
log-sum-exp of its scores with its output. Units are plain batched products in float32: to that
kernel they would be a few queries at a time. The contributions to a token (of its unit, and of each
long node above) are merged by their log-sum-exp. The backward pass takes the merged output and
log-sum-exp, so the gradient of each contribution is exact, and no probability is stored between the
passes.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from services.learner.attention.matmuls import CausalRun, Matmuls
from services.learner.attention.units import UnitStack

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class UnitBatch:
    """Some units of one stack, computed at a time.

    Tensors of a sequence are [1, heads, tokens, width], those of a batch [units, heads, …].
    """

    def __init__(self, stack: UnitStack, units: slice) -> None:
        query_A_Q = stack.query_A_Q[units]
        kept_A_Q = stack.kept_A_Q[units]
        self.units = len(query_A_Q)
        self.query = torch.from_numpy(query_A_Q).flatten()
        self.key = torch.from_numpy(stack.key_A_K[units]).flatten()
        self.kept = None if kept_A_Q.all() else torch.from_numpy(kept_A_Q).flatten().nonzero()[:, 0]
        self.place = self.query if self.kept is None else self.query[self.kept]
        self.hidden = torch.from_numpy(~stack.visible(units))[:, None]

    def select(self, tensor: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Return [units, heads, places of a unit, width], in at least float32."""
        selected = tensor[0].transpose(0, 1).index_select(0, place)
        selected = selected.to(torch.promote_types(tensor.dtype, torch.float32))
        return selected.view(self.units, -1, *selected.shape[1:]).transpose(1, 2)

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return [units, heads, queries, keys]; −inf where a query does not attend to a key."""
        return torch.matmul(query, key.transpose(2, 3)).masked_fill_(self.hidden, float("-inf"))

    def query_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradients of the output at the queries; 0 for padding."""
        selected = self.select(grad, self.query)
        if self.kept is None:
            return selected
        kept = torch.zeros(len(self.query), dtype=selected.dtype).index_fill_(0, self.kept, 1.0)
        return selected * kept.view(self.units, 1, -1, 1)

    def put_queries(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Copy values of the queries to their places in the sequence."""
        by_place = _by_place(part)
        values = by_place if self.kept is None else by_place[self.kept]
        whole[0].transpose(0, 1).index_copy_(0, self.place, values)

    def add_keys(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Add values of the keys at their places: several units share the keys above them."""
        by_place = _by_place(part).flatten(1)
        at = self.key[:, None].expand(-1, by_place.shape[1])
        whole[0].transpose(0, 1).view(whole.shape[2], -1).scatter_add_(0, at, by_place)


def _by_place(part: torch.Tensor) -> torch.Tensor:
    """[units, heads, places, width] → [units · places, heads, width]."""
    return part.transpose(1, 2).reshape(-1, part.shape[1], part.shape[3])


def _batches(stack: UnitStack) -> Iterator[UnitBatch]:
    """Yield as many units at a time as their scores may take."""
    for at in range(0, len(stack.query_A_Q), stack.at_once):
        yield UnitBatch(stack, slice(at, at + stack.at_once))


class PreparedMatmuls:
    """A sequence's products as the kernel takes them, made once for all layers."""

    def __init__(self, matmuls: Matmuls) -> None:
        self.own, self.below = matmuls.own, matmuls.below
        self.batches = tuple(batch for stack in matmuls.stacks for batch in _batches(stack))


class _Saved(NamedTuple):
    """Tensors that the backward pass needs.

    query, key, value: the inputs, [1, heads, tokens, width].
    merged: the output as it was returned, [1, tokens, heads, width].
    lse: log-sum-exp of the scores, [1, heads, tokens].
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    merged: torch.Tensor
    lse: torch.Tensor

    @property
    def output(self) -> torch.Tensor:
        """The output, [1, heads, tokens, width]."""
        return self.merged.transpose(1, 2)


class _Gradients(NamedTuple):
    """Gradients of the inputs, in at least float32."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class _NodeAttention(torch.autograd.Function):
    """[1, heads, tokens, width] each; the output is [1, tokens, heads, width]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        matmuls: PreparedMatmuls,
        scale: float,
    ) -> torch.Tensor:
        output, lse = _own_products(query, key, value, matmuls, scale)
        for span in matmuls.below:
            keys, rest = slice(span.start, span.stop), slice(span.stop, span.end)
            part, part_lse = _forward(
                query[:, :, rest], key[:, :, keys], value[:, :, keys], scale=scale
            )
            _merge(output[:, :, rest], lse[:, :, rest], part, part_lse)
        merged = output.transpose(1, 2).to(query.dtype)
        ctx.save_for_backward(*_Saved(query, key, value, merged=merged, lse=lse))
        ctx.matmuls, ctx.scale = matmuls, scale
        return merged

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved, grad = _Saved._make(ctx.saved_tensors), grad.transpose(1, 2)
        query, key, value = saved.query, saved.key, saved.value
        added = bool(ctx.matmuls.batches)  # units add to the gradients of keys
        gradients = _Gradients(_wide(query), _wide(key, zero=added), _wide(value, zero=added))
        for run in ctx.matmuls.own:
            _own_backward(run, gradients, grad, saved, ctx.scale)
        for batch in ctx.matmuls.batches:
            _units_backward(batch, gradients, grad, saved, ctx.scale)
        for span in ctx.matmuls.below:
            keys, rest = slice(span.start, span.stop), slice(span.stop, span.end)
            parts = _backward(
                grad[:, :, rest],
                query[:, :, rest],
                key[:, :, keys],
                value[:, :, keys],
                saved.output[:, :, rest],
                saved.lse[:, :, rest],
                dropout_p=0.0,
                is_causal=False,
                scale=ctx.scale,
            )
            for gradient, part, at in zip(gradients, parts, (rest, keys, keys), strict=True):
                gradient[:, :, at] += part
        return (*(gradient.to(query.dtype) for gradient in gradients), None, None)


def _own_backward(
    run: CausalRun, gradients: _Gradients, grad: torch.Tensor, saved: _Saved, scale: float
) -> None:
    """Set the gradients of long nodes by their products with themselves."""
    parts = _backward(
        _nodes(grad, run),
        _nodes(saved.query, run),
        _nodes(saved.key, run),
        _nodes(saved.value, run),
        _nodes(saved.output, run),
        _nodes(saved.lse[..., None], run)[..., 0],
        dropout_p=0.0,
        is_causal=True,
        scale=scale,
    )
    for gradient, part in zip(gradients, parts, strict=True):
        _nodes(gradient, run).copy_(part)


def _units_backward(
    batch: UnitBatch, gradients: _Gradients, grad: torch.Tensor, saved: _Saved, scale: float
) -> None:
    """Set the gradients of the units' queries; add those of their keys."""
    grad = batch.query_gradient(grad)
    query = batch.select(saved.query, batch.query).mul_(scale)
    key = batch.select(saved.key, batch.key)
    value = batch.select(saved.value, batch.key)
    lse = batch.select(saved.lse[..., None], batch.query)
    weight = batch.scores(query, key).sub_(lse).exp_()
    mean = (grad * batch.select(saved.output, batch.query)).sum(-1, keepdim=True)
    batch.add_keys(gradients.value, torch.matmul(weight.transpose(2, 3), grad))
    weight *= torch.matmul(grad, value.transpose(2, 3)).sub_(mean)
    batch.put_queries(gradients.query, torch.matmul(weight, key).mul_(scale))
    batch.add_keys(gradients.key, torch.matmul(weight.transpose(2, 3), query))


def _own_products(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    matmuls: PreparedMatmuls,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from long nodes to themselves, and from units to all that they see.

    Return the output [1, heads, tokens, width] and the log-sum-exp [1, heads, tokens].
    """
    output, lse = _wide(query), _wide(query[..., :1])
    for run in matmuls.own:
        inputs = (_nodes(x, run) for x in (query, key, value))
        part, part_lse = _forward(*inputs, is_causal=True, scale=scale)
        _nodes(output, run).copy_(part)
        _nodes(lse, run).copy_(part_lse[..., None])
    for batch in matmuls.batches:
        batch_key, batch_value = batch.select(key, batch.key), batch.select(value, batch.key)
        weight = batch.scores(batch.select(query, batch.query).mul_(scale), batch_key)
        largest = weight.amax(-1, keepdim=True)
        sums = weight.sub_(largest).exp_().sum(-1, keepdim=True)
        batch.put_queries(output, torch.matmul(weight, batch_value).div_(sums))
        batch.put_queries(lse, largest + sums.log())
    return output, lse[..., 0]


def _wide(like: torch.Tensor, zero: bool = False) -> torch.Tensor:
    """Return a new [1, heads, tokens, width] in at least float32, a token's heads side by side."""
    one, heads, tokens, width = like.shape
    make = torch.zeros if zero else torch.empty
    wide = torch.promote_types(like.dtype, torch.float32)
    return make(one, tokens, heads, width, dtype=wide, device=like.device).transpose(1, 2)


def _nodes(tensor: torch.Tensor, run: CausalRun) -> torch.Tensor:
    """Return a view [count, heads, size, width] of the nodes of a run."""
    part = tensor[0, :, run.start : run.stop]
    return part.view(len(part), run.count, run.size, part.shape[2]).transpose(0, 1)


def _merge(
    output: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> None:
    """Merge the output over some more keys, each weighted by its share of the exponentials."""
    output.lerp_(part.to(output.dtype), torch.sigmoid(part_lse - lse)[..., None])
    torch.logaddexp(lse, part_lse, out=lse)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    matmuls: PreparedMatmuls,
    scale: float,
) -> torch.Tensor:
    """Attend: [1, heads, tokens, width] → [1, tokens, heads, width]; equally many heads in all.

    The kernel wants one width: narrower values (latent attention, DeepSeek) or queries are padded
    with zeros, which add nothing to scores, and columns of zeros to the output.
    """
    width = max(query.shape[-1], value.shape[-1])

    def prepared(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[-1] < width:
            tensor = pad(tensor, (0, width - tensor.shape[-1]))
        tensor = tensor.to(value.dtype)  # autocast turns rotated ones to float32
        # The kernel reads on without checking the last stride.
        return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

    inputs = [prepared(tensor) for tensor in (query, key, value)]
    with torch.autocast(value.device.type, enabled=False):
        output = _NodeAttention.apply(*inputs, matmuls, scale)  # type: ignore[no-untyped-call]
    return output[..., : value.shape[-1]]  # type: ignore[no-any-return]
