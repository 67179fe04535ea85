"""The division of a batch's trees among ranks, and the packing of each rank's sequences. Pure.

All pieces of a tree go to one rank; the trees of a group may go to several, as their advantages are
estimated before. Every rank gets the same number of sequences, since every pass is a collective:
empty sequences fill up. Sequences at the same place of their ranks are computed at the same time,
so each rank's are sorted by cost.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from services.learner.packing import packing
from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import TreePart
from services.learner.training.distributed.cost import Costs


def pack(pieces: Iterable[TreePart], budget: int, ranks: int, costs: Costs) -> list[PackedSequence]:
    """Return the sequences of all ranks: number i is of rank i mod `ranks`."""
    shares = [_packed(share, budget, costs) for share in deal(list(pieces), ranks, costs)]
    most = max(len(share) for share in shares)
    filled = [[*share, *[empty_sequence()] * (most - len(share))] for share in shares]
    return [share[turn] for turn in range(most) for share in filled]


def of_rank(sequences: Sequence[PackedSequence], rank: int, ranks: int) -> list[PackedSequence]:
    """Return one rank's sequences among those of all."""
    return list(sequences[rank::ranks])


def deal(pieces: Sequence[TreePart], ranks: int, costs: Costs) -> list[list[TreePart]]:
    """Return each rank's pieces, in their order.

    Trees are dealt by falling cost, each to the rank with the least: within 4/3 of the best
    balance.
    """
    by_tree: dict[bytes, list[int]] = {}
    for index, piece in enumerate(pieces):
        by_tree.setdefault(piece.tree, []).append(index)
    cost = {tree: sum(costs.of(pieces[i]) for i in own) for tree, own in by_tree.items()}
    load = [0.0] * ranks
    dealt = [list[int]() for _ in range(ranks)]
    for tree in sorted(by_tree, key=lambda t: -cost[t]):  # stable: equal trees in the batch's order
        rank = load.index(min(load))
        load[rank] += cost[tree]
        dealt[rank] += by_tree[tree]
    return [[pieces[i] for i in sorted(own)] for own in dealt]


def _packed(pieces: Sequence[TreePart], budget: int, costs: Costs) -> list[PackedSequence]:
    sequences = packing.pack(pieces, budget)
    return sorted(sequences, key=lambda sequence: -costs.of_sequence(sequence))


def empty_sequence() -> PackedSequence:
    """Return the smallest sequence that runs through all layers: two tokens, nothing trained."""
    none, zero = np.zeros((1, 1)), np.zeros(1, np.int64)
    return PackedSequence(
        token_N=np.zeros(2, np.int64),
        position_N=np.arange(2),
        enter_N=np.zeros(2, np.int64),
        leave_N=np.zeros(2, np.int64),
        trunk=0,
        blocks=((0, 2),),
        place_R=zero,
        temperature_R=np.ones(1),
        row_E=zero,
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


def is_empty(sequence: PackedSequence) -> bool:
    """Tell whether a sequence only fills up."""
    return not sequence.mask_P_T.any()
