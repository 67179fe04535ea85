"""Deals the trees of a batch out to ranks, and packs each rank's rows. Pure.

All pieces of a tree go to one rank; the trees of a group may go to several, for their advantages are estimated before. Every
rank gets the same number of rows, as every pass is a collective: rows that teach nothing fill up. Rows of equal rank order
are computed at the same time, so each rank's are sorted by cost.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from services.learner.packing import packing
from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import TreePart
from services.learner.training.distributed.cost import Costs


def pack(pieces: Iterable[TreePart], budget: int, ranks: int, costs: Costs) -> list[PackedSequence]:
    """Rows of all ranks, one after the other: row i is of rank i mod `ranks`."""
    shares = [_rows(share, budget, costs) for share in deal(list(pieces), ranks, costs)]
    most = max(len(rows) for rows in shares)
    filled = [[*rows, *[empty_row()] * (most - len(rows))] for rows in shares]
    return [rows[turn] for turn in range(most) for rows in filled]


def of_rank(rows: Sequence[PackedSequence], rank: int, ranks: int) -> list[PackedSequence]:
    """One rank's rows among those of all."""
    return list(rows[rank::ranks])


def deal(pieces: Sequence[TreePart], ranks: int, costs: Costs) -> list[list[TreePart]]:
    """Each rank's pieces, in their order. Trees by falling cost, each to the rank with least: within 4/3 of the best."""
    by_tree: dict[bytes, list[int]] = {}
    for index, piece in enumerate(pieces):
        by_tree.setdefault(piece.tree, []).append(index)
    cost = {tree: sum(costs.of(pieces[i]) for i in held) for tree, held in by_tree.items()}
    load, taken = [0.0] * ranks, [list[int]() for _ in range(ranks)]
    for tree in sorted(by_tree, key=lambda t: -cost[t]):  # stable: equal trees in the batch's order
        rank = load.index(min(load))
        load[rank] += cost[tree]
        taken[rank] += by_tree[tree]
    return [[pieces[i] for i in sorted(held)] for held in taken]


def _rows(pieces: Sequence[TreePart], budget: int, costs: Costs) -> list[PackedSequence]:
    rows = packing.pack(pieces, budget)
    return sorted(rows, key=lambda row: -costs.of_row(row))


def empty_row() -> PackedSequence:
    """The smallest row whose pass runs through all layers: two tokens, one path, nothing trained."""
    none, one = np.zeros((1, 1)), np.zeros(1)
    zero = np.zeros(1, np.int64)
    return PackedSequence(
        token_U=np.zeros(2, np.int64),
        position_U=np.arange(2),
        enter_U=np.zeros(2, np.int64),
        leave_U=np.zeros(2, np.int64),
        trunk=0,
        blocks=((0, 2),),
        place_R=zero,
        temperature_R=one + 1.0,
        readout_E=zero,
        token_E=zero,
        index_P_T=np.zeros((1, 1), np.int64),
        mask_P_T=np.zeros((1, 1), np.bool_),
        behaviour_P_T=none,
        drawn_P_T=none,
        foreign_P_T=np.zeros((1, 1), np.bool_),
        advantage_P_T=none,
        share_P_T=none,
        origin_P_T=np.zeros((1, 1), np.int64),
    )


def is_empty(row: PackedSequence) -> bool:
    """Whether a row only fills up."""
    return not row.mask_P_T.any()
