"""Sibling-pair DPO: −log σ(β [(log π − log π_ref)(chosen) − (log π − log π_ref)(rejected)]).

The mean over pairs (TreeCUA, arXiv 2602.09662; DPO: Rafailov et al. 2023, arXiv 2305.18290). A pair
is two children of one node, so both were sampled after the same tokens; the one with the better
advantage is chosen. Lines hold pairs instead of paths: the chosen child's tokens, then the rejected
one's.
"""

from typing import ClassVar

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.aggregate import Totals
from services.learner.losses.composed import Measures
from services.learner.losses.kl import Kl
from services.learner.losses.tokens import Tokens
from services.learner.model.tempered import Softening
from services.learner.packing.loss_targets import LossTargets


class Dpo(settings.Dpo):
    """The loss with its settings."""

    needs_reference: ClassVar[bool] = True
    reward_kl: ClassVar[Kl | None] = None
    needs_survey: ClassVar[bool] = False
    entropy: ClassVar[float] = 0.0
    softening: ClassVar[Softening | None] = None

    @property
    def targets(self) -> LossTargets:
        """Pairs of siblings."""
        return LossTargets(pairs=self.pairs, margin=self.margin)

    def survey(self, tokens: Tokens) -> tuple[float, float]:
        """Raise AssertionError: it needs no survey."""
        raise AssertionError("dpo surveys nothing")

    def compute(self, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Measures]:
        """Return what a sequence's pairs add to the loss of the batch, and their measures."""
        assert tokens.reference_P_T is not None
        gain_P_T = (tokens.logp_P_T - tokens.reference_P_T).masked_fill(~tokens.mask_P_T, 0.0)
        gain_P = gain_P_T.sum(1)
        margin = self.beta * (gain_P[0::2] - gain_P[1::2])
        loss = -torch.nn.functional.logsigmoid(margin).sum() / max(1, totals.paths // 2)
        return loss, {
            "pairs_right": (float((margin > 0).sum()), float(len(margin))),
            "pairs_margin": (float(margin.detach().sum()), float(len(margin))),
        }
