"""All attention methods have the values and gradients of the whole mask; leaking ones do not."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from banyan.errors import NotReady
from services.learner.attention import flex, tree_attention
from services.learner.attention.cost_model import AttentionMethod
from services.learner.attention.mask import TreeMask
from services.learner.attention.tree_attention import Heads, Layer
from tests.learner.attention.reference import (
    CPU,
    SOME,
    furthest,
    furthest_of,
    heads_of,
    plain,
    sequence_of,
    sequences_of,
    truth,
)


@SOME
@given(
    seed=st.integers(0, 10**6),
    trees=st.integers(1, 4),
    segments=st.integers(1, 12),
    shared=st.booleans(),
    window=st.sampled_from([None, 1, 3, 7]),
    cap=st.sampled_from([None, 0.7]),
    sinks=st.booleans(),
)
def test_all_methods_agree(
    forest: Any,
    seed: int,
    trees: int,
    segments: int,
    shared: bool,
    window: int | None,
    cap: float | None,
    sinks: bool,
) -> None:
    sequences = sequences_of(forest, seed, trees, segments, shared)
    assume(sequences)  # a tree may hold nothing to train
    sequence = sequences[0]
    tree, heads = TreeMask(sequence, torch.float64, CPU), heads_of(sequence, seed)
    layer = Layer(0.4, tree.window(window), cap, sink_of() if sinks else None)
    expected = plain(heads, truth(sequence, window), layer)
    inputs = [*heads, *([] if layer.sink_H is None else [layer.sink_H])]
    methods = [AttentionMethod.PADDED, AttentionMethod.BLOCKS]
    if layer.window is None and layer.fusible:
        methods.append(AttentionMethod.NODES)
    for method in methods:
        got = tree_attention.attend(heads, tree, layer, method)
        assert furthest_of(inputs, got, expected) < 1e-12, method
    assert tree.method(layer.window, layer.fusible) in methods


def sink_of() -> torch.Tensor:
    return torch.tensor([-1.0, 0.5, 2.0, 0.0], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("keys", "values"), [(8, 5), (6, 8)])
def test_values_may_be_of_another_width(forest: Any, keys: int, values: int) -> None:
    sequence = sequence_of(forest, 4, 3, 9, True)
    torch.manual_seed(0)
    sizes = ((4, keys), (2, keys), (2, values))
    heads = Heads(
        *(
            torch.randn(1, h, len(sequence.token_U), w, dtype=torch.float64, requires_grad=True)
            for h, w in sizes
        )
    )
    expected = plain(heads, truth(sequence, None), Layer(0.4, None, None))
    for method in (AttentionMethod.PADDED, AttentionMethod.BLOCKS, AttentionMethod.NODES):
        tree = TreeMask(sequence, torch.float64, CPU)
        got = tree_attention.attend(heads, tree, Layer(0.4, None, None), method)
        assert furthest(heads, got, expected) < 1e-12, method


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (3, None), (None, 0.7), (3, 0.7)])
def test_flex_attention_sees_the_same(
    forest: Any, window: int | None, cap: float | None, sinks: bool
) -> None:
    for seed in range(3):
        sequence = sequence_of(forest, seed, 3, 8, seed > 0)
        tree, heads = TreeMask(sequence, torch.float64, CPU), heads_of(sequence, seed)
        layer = Layer(0.4, tree.window(window), cap, sink_of().detach() if sinks else None)
        expected = plain(heads, truth(sequence, window), layer)
        fixed = Heads(*(x.detach() for x in heads))  # without CUDA it makes no gradients
        got = tree_attention.attend(fixed, tree, layer, AttentionMethod.BLOCK_MASK)
        bound = 1e-6 if sinks else 1e-12  # its log-sum-exp is in float32
        assert float((got - expected).detach().abs().max()) < bound


def test_the_block_mask_of_flex_attention_is_the_whole_mask(forest: Any) -> None:
    sequence = sequence_of(forest, 5, 3, 10, True)
    count = len(sequence.token_U)
    for window in (None, 2, 5):
        tree = TreeMask(sequence, torch.float64, CPU)
        mask = flex.block_mask(tree, tree.window(window))
        at = torch.arange(count)
        visible = mask.mask_mod(torch.tensor(0), torch.tensor(0), at[:, None], at[None, :])
        assert torch.equal(visible, truth(sequence, window))


@SOME
@given(
    seed=st.integers(0, 10**6),
    trees=st.integers(1, 4),
    segments=st.integers(1, 25),
    block=st.sampled_from([1, 2, 7, 16, 128]),
    window=st.sampled_from([None, 1, 5, 12]),
)
def test_blocks_hold_all_that_is_visible(
    forest: Any, seed: int, trees: int, segments: int, block: int, window: int | None
) -> None:
    sequences = sequences_of(forest, seed, trees, segments, seed % 2 == 0)
    assume(sequences)
    tree = TreeMask(sequences[0], torch.float64, CPU)
    visible = truth(sequences[0], window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "BLOCK", block)
        some, full = flex.visible_blocks(tree.end_U, tree.position_U, window)
    for q, k in np.ndindex(some.shape):
        pairs = visible[q * block : (q + 1) * block, k * block : (k + 1) * block]
        assert some[q, k] or not pairs.any()
        assert (pairs.numel() == block**2 and bool(pairs.all())) or not full[q, k]
        if window is None:
            assert some[q, k] == bool(pairs.any())
            assert full[q, k] == (pairs.numel() == block**2 and bool(pairs.all()))


def test_a_window_that_reaches_over_all_paths_is_none(forest: Any) -> None:
    sequence = sequence_of(forest, 2, 2, 9, False)
    tree, longest = TreeMask(sequence, torch.float64, CPU), int(sequence.position_U.max()) + 1
    assert tree.window(longest) is None
    assert tree.window(longest - 1) == longest - 1
    assert torch.equal(truth(sequence, longest), truth(sequence, None))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"position_bias": torch.zeros(1, 4, 2, 2)},
            r"position_bias = float32 numbers of shape \(1, 4, 2, 2\)",
        ),
        ({"is_causal": False}, "is_causal = False"),
        ({"attention_mask": torch.zeros(1, 1, 2, 2)}, "attention_mask = "),
        ({"dropout": 0.1}, r"dropout = 0\.1"),
    ],
)
def test_tree_attention_refuses_what_it_does_not_know(
    forest: Any, arguments: dict[str, Any], message: str
) -> None:
    """The error comes with the call too (services/chassis/model_checks/attention_keywords.py)."""
    sequence = sequence_of(forest, 0, 1, 4, False)
    heads, tree = heads_of(sequence, 0), TreeMask(sequence, torch.float64, CPU)
    fine: dict[str, Any] = {
        "attention_mask": None,
        "tree": tree,
        "use_cache": True,
        "anything": None,
    }
    tree_attention.tree_attention(torch.nn.Identity(), *heads, **fine)
    with pytest.raises(
        NotReady, match=f"Identity attends with {message}.*, which tree attention does not do"
    ):
        tree_attention.tree_attention(torch.nn.Identity(), *heads, **fine | arguments)
