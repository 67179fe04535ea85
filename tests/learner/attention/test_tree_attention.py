"""All attention methods have the values and gradients of the whole mask; leaking ones do not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from banyan.errors import NotReady
from services.learner.attention import flex, matmuls, node_attention, tree_attention
from services.learner.attention.cost_model import AttentionMethod
from services.learner.attention.mask import TreeMask
from services.learner.attention.tree_attention import Heads, Layer
from services.learner.packing import node_spans, packing, unroll
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
    pieces = [
        unroll.unroll(v, range(len(v.leaves_L)), np.ones(len(v.leaves_L)), None, b"now")
        for v in views
    ]
    return packing.pack(pieces, 10_000)


def row_of(forest: Any, seed: int, trees: int, segments: int, shared: bool) -> PackedSequence:
    return sequences_of(forest, seed, trees, segments, shared)[0]


def truth(row: PackedSequence, window: int | None) -> torch.Tensor:
    """Return the whole mask, token by token, from the sequence's arrays alone."""
    count = len(row.token_U)
    block = np.full(count, -1)
    for number, (start, stop) in enumerate(row.blocks):
        block[start:stop] = number
    seen = np.zeros((count, count), np.bool_)
    for i in range(count):
        for j in range(i + 1):
            above = block[i] == block[j] and row.enter_U[j] <= row.enter_U[i] <= row.leave_U[j]
            near = window is None or row.position_U[i] - row.position_U[j] < window
            seen[i, j] = (j < row.trunk or above) and near
    return torch.from_numpy(seen)


def heads_of(row: PackedSequence, seed: int, dtype: torch.dtype = torch.float64) -> Heads:
    torch.manual_seed(seed)
    shape = (1, len(row.token_U))
    q, k, v = (torch.randn(*shape, heads, 8, dtype=dtype).transpose(1, 2) for heads in (4, 2, 2))
    return Heads(*(x.requires_grad_() for x in (q, k, v)))


def plain(heads: Heads, seen: torch.Tensor, layer: Layer) -> torch.Tensor:
    k, v = (x.repeat_interleave(2, 1) for x in heads[1:])
    scores = heads.query @ k.transpose(2, 3) * layer.scale
    if layer.cap is not None:
        scores = layer.cap * torch.tanh(scores / layer.cap)
    weight = scores.masked_fill(~seen, float("-inf")).exp()
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
    found = [torch.autograd.grad(x, inputs, slope, retain_graph=True) for x in (got, expected)]
    return max(
        float((a - b).detach().abs().max()) for a, b in ((got, expected), *zip(*found, strict=True))
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
    rows = sequences_of(forest, seed, trees, segments, shared)
    assume(rows)  # a tree may hold nothing to train
    row = rows[0]
    tree, heads = TreeMask(row, torch.float64, CPU), heads_of(row, seed)
    layer = Layer(0.4, tree.window(window), cap, sink_of() if sinks else None)
    expected = plain(heads, truth(row, window), layer)
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
    row = row_of(forest, 4, 3, 9, True)
    torch.manual_seed(0)
    sizes = ((4, keys), (2, keys), (2, values))
    heads = Heads(
        *(
            torch.randn(1, h, len(row.token_U), w, dtype=torch.float64, requires_grad=True)
            for h, w in sizes
        )
    )
    expected = plain(heads, truth(row, None), Layer(0.4, None, None))
    for method in (AttentionMethod.PADDED, AttentionMethod.BLOCKS, AttentionMethod.NODES):
        tree = TreeMask(row, torch.float64, CPU)
        got = tree_attention.attend(heads, tree, Layer(0.4, None, None), method)
        assert furthest(heads, got, expected) < 1e-12, method


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (3, None), (None, 0.7), (3, 0.7)])
def test_flex_attention_sees_the_same(
    forest: Any, window: int | None, cap: float | None, sinks: bool
) -> None:
    for seed in range(3):
        row = row_of(forest, seed, 3, 8, seed > 0)
        tree, heads = TreeMask(row, torch.float64, CPU), heads_of(row, seed)
        layer = Layer(0.4, tree.window(window), cap, sink_of().detach() if sinks else None)
        expected = plain(heads, truth(row, window), layer)
        fixed = Heads(*(x.detach() for x in heads))  # without CUDA it makes no gradients
        got = tree_attention.attend(fixed, tree, layer, AttentionMethod.BLOCK_MASK)
        bound = 1e-6 if sinks else 1e-12  # its log-sum-exp is in float32
        assert float((got - expected).detach().abs().max()) < bound


def test_the_block_mask_of_flex_attention_is_the_whole_mask(forest: Any) -> None:
    row = row_of(forest, 5, 3, 10, True)
    count = len(row.token_U)
    for window in (None, 2, 5):
        tree = TreeMask(row, torch.float64, CPU)
        made = flex.block_mask(tree, tree.window(window))
        at = torch.arange(count)
        seen = made.mask_mod(torch.tensor(0), torch.tensor(0), at[:, None], at[None, :])
        assert torch.equal(seen, truth(row, window))


def test_a_window_that_reaches_over_all_paths_is_none(forest: Any) -> None:
    row = row_of(forest, 2, 2, 9, False)
    tree, longest = TreeMask(row, torch.float64, CPU), int(row.position_U.max()) + 1
    assert tree.window(longest) is None
    assert tree.window(longest - 1) == longest - 1
    assert torch.equal(truth(row, longest), truth(row, None))


def test_the_products_of_a_row_are_every_pair_once(forest: Any) -> None:
    for seed in range(30):
        row, long = row_of(forest, seed, 3, 9, seed % 2 == 0), (0, 3, matmuls.LONG)[seed % 3]
        made = matmuls.plan(node_spans.spans(row), long)
        count = np.zeros((len(row.token_U),) * 2, np.int64)
        for own in made.own:
            for start in range(own.start, own.stop, own.size):
                stop = start + own.size
                count[start:stop, start:stop] += np.tri(own.size, dtype=np.int64)
        for span in made.below:
            count[span.stop : span.end, span.start : span.stop] += 1
        for stack in made.stacks:
            visible_A_Q_K = stack.visible(slice(None))
            for queries, kept, keys, visible in zip(
                stack.query_A_Q, stack.kept_A_Q, stack.key_A_K, visible_A_Q_K, strict=True
            ):
                for at in np.flatnonzero(kept):
                    np.add.at(count[queries[at]], keys[visible[at]], 1)
        assert np.array_equal(count, truth(row, None).numpy().astype(np.int64))  # every pair once
        assert (made.stacks == ()) == (long == 0) and (made.own == ()) == (long == matmuls.LONG)
        assert long or matmuls.long_pairs(made) == count.sum()


def test_equal_siblings_are_one_product(forest: Any) -> None:
    view = forest.flat([1.0] * 5, lengths=[3, 3, 3, 2, 2])
    row = packing.pack([unroll.unroll(view, range(5), np.ones(5), None, b"now")], 99)[0]
    made = matmuls.plan(node_spans.spans(row), 0)
    assert [(o.start, o.size, o.count) for o in made.own] == [(0, 3, 1), (3, 3, 3), (12, 2, 2)]
    assert [(s.start, s.stop, s.end) for s in made.below] == [(0, 3, 16)]


def test_a_node_and_its_only_child_are_one_product(forest: Any) -> None:
    view = forest.flat([1.0])
    row = packing.pack([unroll.unroll(view, [0], np.ones(1), None, b"now")], 99)[0]
    assert node_spans.spans(row) == [node_spans.Span(0, 5, 5)]


def test_a_leaking_span_changes_values_and_gradients(forest: Any) -> None:
    row = row_of(forest, 4, 2, 9, False)
    heads, layer = heads_of(row, 4), Layer(0.4, None, None)
    expected = plain(heads, truth(row, None), layer)
    made = matmuls.plan(node_spans.spans(row), 0)
    leak = next(i for i, span in enumerate(made.below) if span.end < len(row.token_U))
    wrong = tuple(replace(s, end=s.end + 1) if i == leak else s for i, s in enumerate(made.below))
    k, v = (x.repeat_interleave(2, 1) for x in heads[1:])
    got = node_attention.attend(
        heads.query, k, v, node_attention.PreparedMatmuls(replace(made, below=wrong)), 0.4
    )
    assert furthest(heads, got, expected) > 1e-3


def test_a_unit_that_sees_too_much_changes_values_and_gradients(forest: Any) -> None:
    row = row_of(forest, 4, 2, 9, False)
    heads = heads_of(row, 4)
    expected = plain(heads, truth(row, None), Layer(0.4, None, None))
    made = matmuls.plan(node_spans.spans(row))
    k, v = (x.repeat_interleave(2, 1) for x in heads[1:])
    right = node_attention.attend(heads.query, k, v, node_attention.PreparedMatmuls(made), 0.4)
    assert furthest(heads, right, expected) < 1e-12
    wrong = replace(
        made,
        stacks=tuple(replace(one, end_A_K=np.full_like(one.end_A_K, 10**6)) for one in made.stacks),
    )
    got = node_attention.attend(heads.query, k, v, node_attention.PreparedMatmuls(wrong), 0.4)
    assert furthest(heads, got, expected) > 1e-3


@SOME
@given(
    seed=st.integers(0, 10**6),
    trees=st.integers(1, 4),
    segments=st.integers(1, 12),
    choice=st.integers(0, 9),
)
def test_which_nodes_are_long_changes_nothing(
    forest: Any, seed: int, trees: int, segments: int, choice: int
) -> None:
    rows = sequences_of(forest, seed, trees, segments, True)
    assume(rows)
    heads = heads_of(rows[0], seed)
    expected = plain(heads, truth(rows[0], None), Layer(0.4, None, None))
    k, v = (x.repeat_interleave(2, 1) for x in heads[1:])
    made = node_attention.PreparedMatmuls(matmuls.plan(node_spans.spans(rows[0]), choice))
    assert furthest(heads, node_attention.attend(heads.query, k, v, made, 0.4), expected) < 1e-12


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_node_by_node_in_lower_precision(forest: Any, dtype: torch.dtype, bound: float) -> None:
    row = row_of(forest, 6, 3, 12, True)
    heads, layer = heads_of(row, 6), Layer(0.4, None, None)
    low = Heads(*(x.detach().to(dtype).requires_grad_() for x in heads))
    exact = Heads(*(x.detach().double().requires_grad_() for x in low))
    got = tree_attention.attend(low, TreeMask(row, dtype, CPU), layer, AttentionMethod.NODES)
    expected = plain(exact, truth(row, None), layer)
    assert float((got.double() - expected).detach().abs().max()) < bound
    slope = torch.randn_like(got)
    made = (
        torch.autograd.grad(got, low, slope),
        torch.autograd.grad(expected, exact, slope.double()),
    )
    assert all(float((a.double() - b).abs().max()) < bound for a, b in zip(*made, strict=True))


def test_node_by_node_takes_heads_of_two_precisions(forest: Any) -> None:
    row = row_of(forest, 6, 3, 12, True)
    heads = heads_of(row, 6, torch.float32)
    mixed, layer = Heads(heads.query, heads.key, heads.value.bfloat16()), Layer(0.4, None, None)
    tree = TreeMask(row, torch.float32, CPU)
    got = tree_attention.attend(mixed, tree, layer, AttentionMethod.NODES)
    expected = tree_attention.attend(heads, tree, layer, AttentionMethod.NODES)
    assert got.dtype == torch.bfloat16
    assert float((got - expected).detach().abs().max()) < 0.05


def test_node_by_node_under_autocast(forest: Any) -> None:
    row = row_of(forest, 6, 3, 12, True)
    heads = heads_of(row, 6, torch.bfloat16)
    expected = tree_attention.attend(
        heads, TreeMask(row, torch.bfloat16, CPU), Layer(0.4, None, None), AttentionMethod.NODES
    )
    with torch.autocast("cpu", torch.bfloat16):
        got = tree_attention.attend(
            heads, TreeMask(row, torch.bfloat16, CPU), Layer(0.4, None, None), AttentionMethod.NODES
        )
    assert torch.equal(got, expected)
    slopes = [torch.autograd.grad(x, heads, torch.ones_like(x)) for x in (got, expected)]
    assert all(torch.equal(a, b) for a, b in zip(*slopes, strict=True))


def test_heads_may_lie_in_memory_as_they_like(forest: Any) -> None:
    row = row_of(forest, 6, 3, 12, True)
    heads = heads_of(row, 6)
    odd = Heads(
        *(x.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for x in heads)
    )
    for long in (0, matmuls.LONG):
        made = node_attention.PreparedMatmuls(matmuls.plan(node_spans.spans(row), long))
        k, v = (x.repeat_interleave(2, 1) for x in odd[1:])
        got = node_attention.attend(
            odd.query, k.transpose(2, 3).contiguous().transpose(2, 3), v, made, 0.4
        )
        expected = plain(odd, truth(row, None), Layer(0.4, None, None))
        assert furthest(odd, got, expected) < 1e-12


def test_node_by_node_is_the_same_bit_for_bit(forest: Any) -> None:
    row = row_of(forest, 7, 3, 12, False)
    heads = heads_of(row, 7, torch.bfloat16)

    def once() -> list[torch.Tensor]:
        seen = tree_attention.attend(
            heads, TreeMask(row, torch.bfloat16, CPU), Layer(0.4, None, None), AttentionMethod.NODES
        )
        return [seen, *torch.autograd.grad(seen, heads, torch.ones_like(seen))]

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


@pytest.mark.parametrize(
    ("given", "said"),
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
    forest: Any, given: dict[str, Any], said: str
) -> None:
    """The error comes with the call too (services/chassis/model_checks/attention_keywords.py)."""
    row = row_of(forest, 0, 1, 4, False)
    heads, tree = heads_of(row, 0), TreeMask(row, torch.float64, CPU)
    fine: dict[str, Any] = {
        "attention_mask": None,
        "tree": tree,
        "use_cache": True,
        "anything": None,
    }
    tree_attention.tree_attention(torch.nn.Identity(), *heads, **fine)
    with pytest.raises(
        NotReady, match=f"Identity attends with {said}.*, which tree attention does not do"
    ):
        tree_attention.tree_attention(torch.nn.Identity(), *heads, **fine | given)
