"""Attention node by node: its products, precisions and strides, and faults that must show."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from services.learner.attention import matmuls, node_attention, tree_attention
from services.learner.attention.cost_model import AttentionMethod
from services.learner.attention.mask import TreeMask
from services.learner.attention.tree_attention import Heads, Layer
from services.learner.packing import node_spans, packing, unroll
from tests.learner.attention.reference import (
    CPU,
    SOME,
    furthest,
    heads_of,
    plain,
    sequence_of,
    sequences_of,
    truth,
)


def test_the_products_of_a_row_are_every_pair_once(forest: Any) -> None:
    for seed in range(30):
        sequence, long = (
            sequence_of(forest, seed, 3, 9, seed % 2 == 0),
            (0, 3, matmuls.LONG)[seed % 3],
        )
        planned = matmuls.plan(node_spans.spans(sequence), long)
        count = np.zeros((len(sequence.token_U),) * 2, np.int64)
        for own in planned.own:
            for start in range(own.start, own.stop, own.size):
                stop = start + own.size
                count[start:stop, start:stop] += np.tri(own.size, dtype=np.int64)
        for span in planned.below:
            count[span.stop : span.end, span.start : span.stop] += 1
        for stack in planned.stacks:
            visible_A_Q_K = stack.visible(slice(None))
            for queries, kept, keys, visible in zip(
                stack.query_A_Q, stack.kept_A_Q, stack.key_A_K, visible_A_Q_K, strict=True
            ):
                for at in np.flatnonzero(kept):
                    np.add.at(count[queries[at]], keys[visible[at]], 1)
        every_pair_once = truth(sequence, None).numpy().astype(np.int64)
        assert np.array_equal(count, every_pair_once)
        assert (planned.stacks == ()) == (long == 0) and (planned.own == ()) == (
            long == matmuls.LONG
        )
        assert long or matmuls.long_pairs(planned) == count.sum()


def test_equal_siblings_are_one_product(forest: Any) -> None:
    view = forest.flat([1.0] * 5, lengths=[3, 3, 3, 2, 2])
    sequence = packing.pack([unroll.unroll(view, range(5), np.ones(5), None, b"now")], 99)[0]
    planned = matmuls.plan(node_spans.spans(sequence), 0)
    assert [(o.start, o.size, o.count) for o in planned.own] == [(0, 3, 1), (3, 3, 3), (12, 2, 2)]
    assert [(s.start, s.stop, s.end) for s in planned.below] == [(0, 3, 16)]


def test_a_node_and_its_only_child_are_one_product(forest: Any) -> None:
    view = forest.flat([1.0])
    sequence = packing.pack([unroll.unroll(view, [0], np.ones(1), None, b"now")], 99)[0]
    assert node_spans.spans(sequence) == [node_spans.Span(0, 5, 5)]


def test_a_leaking_span_changes_values_and_gradients(forest: Any) -> None:
    sequence = sequence_of(forest, 4, 2, 9, False)
    heads, layer = heads_of(sequence, 4), Layer(0.4, None, None)
    expected = plain(heads, truth(sequence, None), layer)
    planned = matmuls.plan(node_spans.spans(sequence), 0)
    leak = next(i for i, span in enumerate(planned.below) if span.end < len(sequence.token_U))
    wrong = tuple(
        replace(s, end=s.end + 1) if i == leak else s for i, s in enumerate(planned.below)
    )
    k, v = (x.repeat_interleave(2, 1) for x in heads[1:])
    got = node_attention.attend(
        heads.query, k, v, node_attention.PreparedMatmuls(replace(planned, below=wrong)), 0.4
    )
    assert furthest(heads, got, expected) > 1e-3


def test_a_unit_that_sees_too_much_changes_values_and_gradients(forest: Any) -> None:
    sequence = sequence_of(forest, 4, 2, 9, False)
    heads = heads_of(sequence, 4)
    expected = plain(heads, truth(sequence, None), Layer(0.4, None, None))
    planned = matmuls.plan(node_spans.spans(sequence))
    k, v = (x.repeat_interleave(2, 1) for x in heads[1:])
    right = node_attention.attend(heads.query, k, v, node_attention.PreparedMatmuls(planned), 0.4)
    assert furthest(heads, right, expected) < 1e-12
    wrong = replace(
        planned,
        stacks=tuple(
            replace(unit_stack, end_A_K=np.full_like(unit_stack.end_A_K, 10**6))
            for unit_stack in planned.stacks
        ),
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
    sequences = sequences_of(forest, seed, trees, segments, True)
    assume(sequences)
    heads = heads_of(sequences[0], seed)
    expected = plain(heads, truth(sequences[0], None), Layer(0.4, None, None))
    k, v = (x.repeat_interleave(2, 1) for x in heads[1:])
    planned = node_attention.PreparedMatmuls(matmuls.plan(node_spans.spans(sequences[0]), choice))
    assert furthest(heads, node_attention.attend(heads.query, k, v, planned, 0.4), expected) < 1e-12


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_node_by_node_in_lower_precision(forest: Any, dtype: torch.dtype, bound: float) -> None:
    sequence = sequence_of(forest, 6, 3, 12, True)
    heads, layer = heads_of(sequence, 6), Layer(0.4, None, None)
    low = Heads(*(x.detach().to(dtype).requires_grad_() for x in heads))
    exact = Heads(*(x.detach().double().requires_grad_() for x in low))
    got = tree_attention.attend(low, TreeMask(sequence, dtype, CPU), layer, AttentionMethod.NODES)
    expected = plain(exact, truth(sequence, None), layer)
    assert float((got.double() - expected).detach().abs().max()) < bound
    slope = torch.randn_like(got)
    gradients = (
        torch.autograd.grad(got, low, slope),
        torch.autograd.grad(expected, exact, slope.double()),
    )
    assert all(float((a.double() - b).abs().max()) < bound for a, b in zip(*gradients, strict=True))


def test_node_by_node_takes_heads_of_two_precisions(forest: Any) -> None:
    sequence = sequence_of(forest, 6, 3, 12, True)
    heads = heads_of(sequence, 6, torch.float32)
    mixed, layer = Heads(heads.query, heads.key, heads.value.bfloat16()), Layer(0.4, None, None)
    tree = TreeMask(sequence, torch.float32, CPU)
    got = tree_attention.attend(mixed, tree, layer, AttentionMethod.NODES)
    expected = tree_attention.attend(heads, tree, layer, AttentionMethod.NODES)
    assert got.dtype == torch.bfloat16
    assert float((got - expected).detach().abs().max()) < 0.05


def test_node_by_node_under_autocast(forest: Any) -> None:
    sequence = sequence_of(forest, 6, 3, 12, True)
    heads = heads_of(sequence, 6, torch.bfloat16)
    expected = tree_attention.attend(
        heads,
        TreeMask(sequence, torch.bfloat16, CPU),
        Layer(0.4, None, None),
        AttentionMethod.NODES,
    )
    with torch.autocast("cpu", torch.bfloat16):
        got = tree_attention.attend(
            heads,
            TreeMask(sequence, torch.bfloat16, CPU),
            Layer(0.4, None, None),
            AttentionMethod.NODES,
        )
    assert torch.equal(got, expected)
    slopes = [torch.autograd.grad(x, heads, torch.ones_like(x)) for x in (got, expected)]
    assert all(torch.equal(a, b) for a, b in zip(*slopes, strict=True))


def test_heads_may_lie_in_memory_as_they_like(forest: Any) -> None:
    sequence = sequence_of(forest, 6, 3, 12, True)
    heads = heads_of(sequence, 6)
    odd = Heads(
        *(x.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for x in heads)
    )
    for long in (0, matmuls.LONG):
        planned = node_attention.PreparedMatmuls(matmuls.plan(node_spans.spans(sequence), long))
        k, v = (x.repeat_interleave(2, 1) for x in odd[1:])
        got = node_attention.attend(
            odd.query, k.transpose(2, 3).contiguous().transpose(2, 3), v, planned, 0.4
        )
        expected = plain(odd, truth(sequence, None), Layer(0.4, None, None))
        assert furthest(odd, got, expected) < 1e-12


def test_node_by_node_is_the_same_bit_for_bit(forest: Any) -> None:
    sequence = sequence_of(forest, 7, 3, 12, False)
    heads = heads_of(sequence, 7, torch.bfloat16)

    def once() -> list[torch.Tensor]:
        output = tree_attention.attend(
            heads,
            TreeMask(sequence, torch.bfloat16, CPU),
            Layer(0.4, None, None),
            AttentionMethod.NODES,
        )
        return [output, *torch.autograd.grad(output, heads, torch.ones_like(output))]

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))
