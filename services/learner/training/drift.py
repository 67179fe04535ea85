"""Distance of the policy from the model that the run began with, measured without that model.

The first batch was sampled by it, and its log-probs are stored with the tokens: KL(start ‖ policy)
per sampled token by the estimator k3 = e^d − 1 − d, d = log π − log π_start (Schulman 2020,
"Approximating KL divergence"). A few of its paths suffice, and a forward pass over them every few
steps.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from banyan.credit.estimate import ScoredTree
from banyan.view import TreeView
from services.learner.model.canary import Compute
from services.learner.packing import packing, unroll
from services.learner.packing.packing import PackedSequence

TREES = 8  # of the first batch that are read
EVERY = 5  # steps between two measurements: 1 % of a step's time on the arithmetic recipe
TOKENS = 512  # unique tokens that are computed, unless a single path is longer


def due(step: int, last: int) -> bool:
    """Tell whether the policy of a step is measured: every few steps, and the last."""
    return step > 0 and (step % EVERY == 0 or step == last)


def probe(trees: Iterable[ScoredTree], budget: int) -> list[PackedSequence]:
    """Pack the first paths of the trees that the starting model sampled, up to TOKENS.

    budget: tokens a sequence may hold; 0 where paths are computed singly
    """
    chosen: list[unroll.TreePart] = []
    for piece in _pieces(trees, min(TOKENS, budget)):
        if chosen and sum(map(len, chosen)) + len(piece) > TOKENS:
            break
        chosen.append(piece)
    return packing.pack(chosen, budget)


def _pieces(trees: Iterable[ScoredTree], budget: int) -> Iterator[unroll.TreePart]:
    for tree in trees:
        view = TreeView(tree.tree, tree.leaves, tree.rewards)
        for leaves in unroll.divide(view, range(len(view.leaves_L)), budget):
            yield unroll.unroll(view, leaves, np.zeros(len(view.leaves_L)), None, b"")


@torch.no_grad()
def measured(sequences: Iterable[PackedSequence], compute: Compute) -> float | None:
    """Return KL(start ‖ policy) in nats per sampled token; None without sampled tokens."""
    total, count = 0.0, 0
    for sequence in sequences:
        logp_E = compute(sequence).logp_E
        index_P_T = torch.from_numpy(sequence.index_P_T).to(logp_E.device)
        now_P_T = logp_E[index_P_T].double().cpu()
        start_P_T = torch.from_numpy(sequence.behaviour_P_T)
        sampled_P_T = torch.from_numpy(sequence.mask_P_T & (sequence.origin_P_T == 0))
        difference = (now_P_T - start_P_T)[sampled_P_T].clamp(-20.0, 20.0)
        total += float((difference.exp() - 1.0 - difference).sum())
        count += int(sampled_P_T.sum())
    return total / count if count else None
