"""Plain attention under the whole mask, as a reference for all methods."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings

from services.learner.attention.tree_attention import Heads, Layer
from services.learner.packing import packing, unroll
from services.learner.packing.packing import PackedSequence

CPU = torch.device("cpu")
SOME = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def sequences_of(
    forest: Any, seed: int, trees: int, segments: int, shared: bool
) -> list[PackedSequence]:
    rng = np.random.default_rng(seed)
    begin = [3, 1, 4, 1][: rng.integers(1, 5)] if shared else ()
    views = [forest.random(rng, segments, begin=begin) for _ in range(trees)]
    parts = [
        unroll.unroll(v, range(len(v.leaves_L)), np.ones(len(v.leaves_L)), None, b"now")
        for v in views
    ]
    return packing.pack(parts, 10_000)


def sequence_of(forest: Any, seed: int, trees: int, segments: int, shared: bool) -> PackedSequence:
    return sequences_of(forest, seed, trees, segments, shared)[0]


def truth(sequence: PackedSequence, window: int | None) -> torch.Tensor:
    """Return the whole mask, token by token, from the sequence's arrays alone."""
    count = len(sequence.token_U)
    block = np.full(count, -1)
    for number, (start, stop) in enumerate(sequence.blocks):
        block[start:stop] = number
    visible = np.zeros((count, count), np.bool_)
    for i in range(count):
        for j in range(i + 1):
            above = (
                block[i] == block[j]
                and sequence.enter_U[j] <= sequence.enter_U[i] <= sequence.leave_U[j]
            )
            near = window is None or sequence.position_U[i] - sequence.position_U[j] < window
            visible[i, j] = (j < sequence.trunk or above) and near
    return torch.from_numpy(visible)


def heads_of(sequence: PackedSequence, seed: int, dtype: torch.dtype = torch.float64) -> Heads:
    torch.manual_seed(seed)
    shape = (1, len(sequence.token_U))
    q, k, v = (torch.randn(*shape, heads, 8, dtype=dtype).transpose(1, 2) for heads in (4, 2, 2))
    return Heads(*(x.requires_grad_() for x in (q, k, v)))


def plain(heads: Heads, visible: torch.Tensor, layer: Layer) -> torch.Tensor:
    k, v = (x.repeat_interleave(2, 1) for x in heads[1:])
    scores = heads.query @ k.transpose(2, 3) * layer.scale
    if layer.cap is not None:
        scores = layer.cap * torch.tanh(scores / layer.cap)
    weight = scores.masked_fill(~visible, float("-inf")).exp()
    total = weight.sum(-1, keepdim=True)
    if layer.sink_H is not None:
        total = total + layer.sink_H[:, None, None].exp()
    return (weight / total @ v).transpose(1, 2)


def furthest(heads: Heads, got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of values and gradients."""
    return furthest_of(heads, got, expected)


def furthest_of(inputs: Sequence[torch.Tensor], got: torch.Tensor, expected: torch.Tensor) -> float:
    torch.manual_seed(1)
    slope = torch.randn_like(expected)
    gradients = [torch.autograd.grad(x, inputs, slope, retain_graph=True) for x in (got, expected)]
    return max(
        float((a - b).detach().abs().max())
        for a, b in ((got, expected), *zip(*gradients, strict=True))
    )
