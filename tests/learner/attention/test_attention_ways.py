"""The attention method of a sequence, its cost, and a bound on the scores that it holds."""

from dataclasses import replace

import numpy as np
import pytest

from services.learner.attention import matmuls, units
from services.learner.attention.cost_model import AttentionMethod, choose, costs
from services.learner.packing import node_spans
from services.learner.packing.packing import PackedSequence


def shape(trunk: int, trees: list[tuple[int, int, int]]) -> PackedSequence:
    """Return a sequence of trees (prompt, branches, new tokens) of which only the shape counts."""
    enter: list[int] = []
    leave: list[int] = []
    blocks = []
    if trunk:
        enter, leave = [0] * trunk, [10**6] * trunk
    for prompt, branches, new in trees:
        start = len(enter)
        enter += [0] * prompt + [1 + i // new for i in range(branches * new)]
        leave += [branches] * prompt + [1 + i // new for i in range(branches * new)]
        blocks.append((start, len(enter)))
    none, empty = np.zeros(0, np.int64), np.zeros((0, 0))
    intervals = {
        "token_U": np.zeros(len(enter), np.int64),
        "enter_U": np.array(enter),
        "leave_U": np.array(leave),
    }
    rest = dict.fromkeys(("position_U", "place_R", "temperature_R", "readout_E", "token_E"), none)
    paths_of = ("index", "mask", "behaviour", "drawn", "foreign", "advantage", "share", "origin")
    return PackedSequence(
        **intervals,
        **rest,
        **{f"{n}_P_T": empty for n in paths_of},
        trunk=trunk,
        blocks=tuple(blocks),
    )  # type: ignore[arg-type]


def comb(tokens: int, node: int) -> PackedSequence:
    """Return a spine of nodes, each with a leaf beside the next."""
    count = tokens // (2 * node)
    enter = np.repeat(np.arange(2 * count), node)
    # A node of the spine, then its leaf, then all that is below.
    leave = np.where(enter % 2 == 0, 2 * count - 1, enter)
    return replace(
        shape(0, [(1, 1, 1)]),
        token_U=np.zeros(len(enter), np.int64),
        enter_U=enter,
        leave_U=leave,
        blocks=((0, len(enter)),),
    )


def test_no_unit_is_more_than_can_be_held() -> None:
    for node in (1, 8, 20):
        sequence = comb(16_384, node)
        planned = matmuls.plan(node_spans.spans(sequence))
        assert planned.stacks and all(
            s.query_A_Q.shape[1] * s.key_A_K.shape[1] <= 2 * units._LARGEST for s in planned.stacks
        )
        kept = np.concatenate([s.query_A_Q[s.kept_A_Q] for s in planned.stacks])
        assert sorted(kept) == list(range(len(sequence.token_U)))


@pytest.mark.parametrize(
    ("sequence", "method"),
    [
        (shape(25, [(20, 8, 8)] * 8), AttentionMethod.PADDED),  # the arithmetic recipe
        (shape(0, [(45, 8, 8)]), AttentionMethod.PADDED),
        (shape(0, [(512, 16, 64)]), AttentionMethod.NODES),
        (shape(0, [(256, 128, 8)]), AttentionMethod.NODES),
    ],
)
def test_the_cheapest_method_is_the_one_that_was_measured_to_be(
    sequence: PackedSequence, method: AttentionMethod
) -> None:
    planned = matmuls.plan(node_spans.spans(sequence))
    assert choose(sequence, planned) is method
    by_method = costs(sequence, planned)
    assert by_method[method] == min(by_method.values())


def test_a_layer_with_a_window_or_a_cap_is_never_done_without_scores() -> None:
    sequence = shape(0, [(512, 16, 64)])
    assert choose(sequence, None) is AttentionMethod.BLOCKS  # too long to hold all scores


def test_what_node_by_node_costs() -> None:
    sequence = shape(0, [(3, 2, 2)])
    # Own: 3 causal, two of 2; below: 3 keys, 4 queries.
    planned = matmuls.plan(node_spans.spans(sequence), 0)
    assert matmuls.long_pairs(planned) == 6 + 2 * 3 + 12
    assert costs(sequence, planned)[AttentionMethod.NODES] == 3 * 615_000 + 7 * 880 + 24 * 5.5
    planned = matmuls.plan(node_spans.spans(sequence))  # one unit of 7
    assert costs(sequence, planned)[AttentionMethod.NODES] == 55_000 + 7 * 880 + 49 * 10.3
