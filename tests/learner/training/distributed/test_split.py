"""Dealing trees to ranks: whole trees, equal numbers of sequences, near the best balance."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.learner.packing import packing, unroll
from services.learner.packing.unroll import TreePart
from services.learner.training.distributed import split
from services.learner.training.distributed.cost import Costs, costs_of

COSTS = Costs(pair=0.01, prediction=0.5)
LOOSE = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def pieces_of(forest: Any, seed: int, trees: int, budget: int) -> list[TreePart]:
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(trees):
        view = forest.random(rng, int(rng.integers(1, 9)))
        leaf_L = np.where(
            np.isfinite(view.rewards_L), rng.standard_normal(len(view.rewards_L)), np.nan
        )
        for run in unroll.divide(view, unroll.trained_leaves(leaf_L), budget):
            piece = unroll.unroll(view, run, leaf_L, None, b"now")
            parts.append(
                TreePart(
                    **{**{n: getattr(piece, n) for n in piece.__slots__}, "tree": bytes([number])}
                )
            )
    return parts


def worth(rows: list[packing.PackedSequence]) -> list[tuple[float, ...]]:
    """Return the values of the paths of sequences, sorted."""
    return sorted(
        tuple(np.concatenate([row.advantage_P_T[p][m], row.behaviour_P_T[p][m]]).tolist())
        for row in rows
        for p, m in enumerate(row.mask_P_T)
        if m.any()
    )


@LOOSE
@given(
    seed=st.integers(0, 10**6),
    trees=st.integers(0, 9),
    ranks=st.integers(1, 5),
    budget=st.sampled_from([8, 30, 4000]),
)
def test_every_rank_has_as_many_sequences_and_no_path_is_lost(
    forest: Any, seed: int, trees: int, ranks: int, budget: int
) -> None:
    pieces = pieces_of(forest, seed, trees, budget)
    rows = split.pack(pieces, budget, ranks, COSTS)
    shares = [split.of_rank(rows, rank, ranks) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert worth(rows) == worth(packing.pack(pieces, budget))
    assert not rows or any(not split.is_empty(row) for row in rows[-ranks:]), (
        "no turn is empty on all ranks"
    )
    for share in shares:  # what is computed at the same time is alike
        assert all(
            COSTS.of_sequence(a) >= COSTS.of_sequence(b)
            for a, b in pairwise(share)
            if not split.is_empty(b)
        )


@LOOSE
@given(
    seed=st.integers(0, 10**6),
    trees=st.integers(1, 9),
    ranks=st.integers(1, 5),
    budget=st.sampled_from([8, 30, 4000]),
)
def test_the_leaves_of_a_tree_stay_on_one_rank(
    forest: Any, seed: int, trees: int, ranks: int, budget: int
) -> None:
    pieces = pieces_of(forest, seed, trees, budget)
    shares = split.deal(pieces, ranks, COSTS)
    trees_by_rank = [{piece.tree for piece in share} for share in shares]
    assert sum(len(trees) for trees in trees_by_rank) == len({piece.tree for piece in pieces})
    order = {id(piece): at for at, piece in enumerate(pieces)}
    assert sorted(order[id(p)] for share in shares for p in share) == list(range(len(pieces)))
    assert all(order[id(a)] < order[id(b)] for share in shares for a, b in pairwise(share))


@LOOSE
@given(seed=st.integers(0, 10**6), trees=st.integers(1, 9), ranks=st.integers(1, 5))
def test_no_rank_has_more_than_the_bound_of_longest_first(
    forest: Any, seed: int, trees: int, ranks: int
) -> None:
    pieces = pieces_of(forest, seed, trees, 4000)
    cost: dict[bytes, float] = {}
    for piece in pieces:
        cost[piece.tree] = cost.get(piece.tree, 0.0) + COSTS.of(piece)
    load = [sum(COSTS.of(piece) for piece in share) for share in split.deal(pieces, ranks, COSTS)]
    largest = max(cost.values(), default=0.0)
    assert max(load) <= sum(cost.values()) / ranks + largest * (1 - 1 / ranks) + 1e-9


def test_a_cost_by_hand() -> None:
    """With two tokens above three: 5 tokens, pairs 1 + 2 + 3 + 4 + 5 = 15, three predictions."""
    empty = np.zeros(0)
    three = np.arange(3)
    path = unroll.Path(
        predictor_T=three + 1,
        token_T=three,
        temperature_T=three + 1.0,
        behaviour_T=three * 0.0,
        drawn_T=three * 0.0,
        foreign_T=three > 9,
        advantage_T=three * 0.0,
        head_T=empty,
    )
    piece = TreePart(
        token_U=np.arange(5),
        position_U=np.arange(5),
        enter_U=np.zeros(5, np.int64),
        leave_U=np.zeros(5, np.int64),
        paths=(path,),
    )
    assert COSTS.of(piece) == 5 + 0.01 * 15 + 0.5 * 3


def test_costs_are_of_the_models_sizes() -> None:
    class Config:
        hidden_size, num_hidden_layers, vocab_size = 576, 30, 49152

    costs = costs_of(Config())
    assert costs.pair == pytest.approx(1 / (6 * 576)) and costs.prediction == pytest.approx(
        49152 / (12 * 576 * 30)
    )


def test_an_empty_sequence_trains_nothing() -> None:
    row = split.empty_sequence()
    assert split.is_empty(row) and len(row.token_U) == 2 and len(row.head_observations) == 0
