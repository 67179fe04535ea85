"""FlexAttention, compiled, against the whole mask on the host, for rows of all lengths."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from services.learner.attention import tree_attention
from services.learner.attention.cost_model import AttentionMethod
from services.learner.attention.mask import TreeMask
from services.learner.attention.tree_attention import Heads, Layer
from services.learner.packing import packing, unroll
from services.learner.packing.packing import PackedSequence
from tests.learner.attention.reference import plain, truth
from tests.learner.conftest import Forest

EAGER = "error:flex_attention called without torch.compile"
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.06}


def row(seed: int, segments: int, longest: int, shared: bool = False) -> PackedSequence:
    rng = np.random.default_rng(seed)
    begin = [3, 1, 4] if shared else ()
    views = [Forest().random(rng, segments, longest, begin) for _ in range(3)]
    parts = [
        unroll.unroll(v, range(len(v.leaves_L)), np.ones(len(v.leaves_L)), None, b"now")
        for v in views
    ]
    return packing.pack(parts, 10_000)[0]


def heads_of(sequence: PackedSequence, dtype: torch.dtype, heads: Any, width: int) -> Heads:
    torch.manual_seed(0)
    tokens = len(sequence.token_U)
    drawn = (torch.randn(1, tokens, count, width).transpose(1, 2) for count in heads)
    return Heads(*(x.to(dtype).requires_grad_() for x in drawn))


def worst(
    sequence: PackedSequence,
    device: torch.device,
    dtype: torch.dtype,
    layer: Layer,
    width: int = 64,
) -> float:
    """Return the furthest difference of values and gradients, over the largest of each."""
    here = heads_of(sequence, dtype, (4, 2, 2), width)
    there = Heads(*(x.detach().to(device).requires_grad_() for x in here))
    exact = Heads(*(x.detach().double().requires_grad_() for x in here))
    sink_H = None if layer.sink_H is None else layer.sink_H.double()
    expected = plain(
        exact, truth(sequence, layer.window), Layer(layer.scale, layer.window, layer.cap, sink_H)
    )
    sink_H = None if layer.sink_H is None else layer.sink_H.to(device)
    tree = TreeMask(sequence, dtype, device)
    got = tree_attention.attend(there, tree, Layer(layer.scale, layer.window, layer.cap, sink_H))
    assert got.dtype == dtype and got.is_cuda
    slope = torch.randn_like(expected)
    pairs = [(got.detach(), expected.detach())]
    pairs += zip(
        torch.autograd.grad(got, there, slope.to(device, dtype)),
        torch.autograd.grad(expected, exact, slope),
        strict=True,
    )
    return max(float((a.double().cpu() - b).abs().max() / b.abs().max()) for a, b in pairs)


@pytest.mark.filterwarnings(EAGER)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("window", "cap", "sinks"), [(None, None, False), (30, 0.7, False), (None, None, True)]
)
def test_values_and_gradients_are_those_of_the_whole_mask(
    cuda: torch.device, dtype: torch.dtype, window: int | None, cap: float | None, sinks: bool
) -> None:
    sequence = row(1, 12, 40, shared=True)
    assert sequence.trunk and len(sequence.token_U) > 256
    sink_H = torch.tensor([-1.0, 0.5, 2.0, 0.0]) if sinks else None
    assert worst(sequence, cuda, dtype, Layer(0.125, window, cap, sink_H)) < BOUNDS[dtype]


@pytest.mark.filterwarnings(EAGER)
def test_rows_of_all_lengths_share_few_compiled_variants(cuda: torch.device) -> None:
    """Shorter and longer than a block, with a trunk and without, with gradients and without."""
    counters.clear()
    layer = Layer(0.125, None, None)
    lengths = set()
    for seed, segments, longest in product(range(3), (3, 9), (4, 17, 60)):
        sequence = row(seed, segments, longest, shared=seed == 1)
        lengths.add(len(sequence.token_U))
        assert worst(sequence, cuda, torch.float32, layer) < BOUNDS[torch.float32]
        with torch.no_grad():
            heads = heads_of(sequence, torch.float32, (4, 2, 2), 64)
            there = Heads(*(x.detach().to(cuda) for x in heads))
            tree_attention.attend(there, TreeMask(sequence, torch.float32, cuda), layer)
    assert min(lengths) < 128 < max(lengths) and len(lengths) > 12
    print("variants", counters["stats"]["unique_graphs"], sorted(lengths))
    assert counters["stats"]["unique_graphs"] <= 6


def test_narrow_heads_attend_block_by_block(cuda: torch.device) -> None:
    """FlexAttention compiles no heads narrower than 16."""
    layer = Layer(0.125, None, None)
    assert worst(row(1, 9, 5), cuda, torch.float32, layer, width=8) < BOUNDS[torch.float32]


@pytest.mark.parametrize("dtype", BOUNDS)
def test_wide_heads(cuda: torch.device, dtype: torch.dtype) -> None:
    layer = Layer(0.0625, None, None)
    assert worst(row(1, 12, 40), cuda, dtype, layer, width=256) < BOUNDS[dtype]


def test_other_methods_give_the_same_there(cuda: torch.device) -> None:
    sequence = row(1, 9, 30, shared=True)
    heads = Heads(*(x.detach().to(cuda) for x in heads_of(sequence, torch.float32, (4, 2, 2), 64)))
    tree, layer = TreeMask(sequence, torch.float32, cuda), Layer(0.125, None, None)
    expected = tree_attention.attend(heads, tree, layer)
    for method in (AttentionMethod.PADDED, AttentionMethod.BLOCKS):
        got = tree_attention.attend(heads, tree, layer, method)
        assert float((got - expected).abs().max()) < 1e-5
