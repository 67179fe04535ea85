"""Packed sequences of random trees, for steps of a trainer."""

from typing import Any

import numpy as np

from services.learner.packing import packing, unroll
from services.learner.packing.packing import PackedSequence


def sequences_of(forest: Any, seed: int, budget: int = 400) -> list[PackedSequence]:
    """Return the sequences of four trees, with advantages drawn by the seed."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(4):
        view = forest.random(rng, 7)
        leaf_L = np.where(
            np.isfinite(view.rewards_L), rng.standard_normal(len(view.rewards_L)), np.nan
        )
        for run in unroll.divide(view, unroll.trained_leaves(leaf_L), budget):
            parts.append(unroll.unroll(view, run, leaf_L, None, b"now"))
    return packing.pack(parts, budget)
