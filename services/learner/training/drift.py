"""Distance of the policy from the model that the run began with, measured without holding that model.

The first batch was sampled by it, and its log-probs are stored with the tokens: KL(start ‖ policy) per sampled token by the
estimator k3 = e^d − 1 − d, d = log π − log π_start (Schulman 2020, "Approximating KL divergence"). A few of its paths
are enough, and a forward pass over them every few steps.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from banyan.view import TreeView
from services.learner.data.credit import ScoredTree
from services.learner.model.canary import Compute
from services.learner.packing import packing, unroll
from services.learner.packing.packing import PackedSequence

TREES = 8  # of the first batch that are read
EVERY = 5  # steps between two measurements: 1 % of a step's time on the quick start
TOKENS = 512  # unique tokens that are computed, unless a single path is longer


def due(step: int, last: int) -> bool:
    """Tell whether the policy of a step is measured: every few steps, and the last."""
    return step > 0 and (step % EVERY == 0 or step == last)


def probe(trees: Iterable[ScoredTree], budget: int) -> list[PackedSequence]:
    """Pack the first paths of the trees that the starting model sampled, up to TOKENS.

    budget: tokens a row may hold; 0 where paths are computed one by one.
    """
    found: list[unroll.TreePart] = []
    for piece in _pieces(trees, min(TOKENS, budget)):
        if found and sum(map(len, found)) + len(piece) > TOKENS:
            break
        found.append(piece)
    return packing.pack(found, budget)


def _pieces(trees: Iterable[ScoredTree], budget: int) -> Iterator[unroll.TreePart]:
    for one in trees:
        view = TreeView(one.tree, one.leaves, one.rewards)
        for leaves in unroll.divide(view, range(len(view.leaves_L)), budget):
            yield unroll.unroll(view, leaves, np.zeros(len(view.leaves_L)), None, b"")


@torch.no_grad()
def measured(rows: Iterable[PackedSequence], compute: Compute) -> float | None:
    """Return KL(start ‖ policy) in nats per sampled token of the paths; None where no row has a sampled token."""
    total, count = 0.0, 0
    for row in rows:
        logp_E = compute(row).logp_E
        now_P_T = logp_E[torch.from_numpy(row.index_P_T).to(logp_E.device)].double().cpu()
        sampled_P_T = torch.from_numpy(row.mask_P_T & (row.origin_P_T == 0))
        difference = (now_P_T - torch.from_numpy(row.behaviour_P_T))[sampled_P_T].clamp(-20.0, 20.0)
        total += float((difference.exp() - 1.0 - difference).sum())
        count += int(sampled_P_T.sum())
    return total / count if count else None
