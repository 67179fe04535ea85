"""Sibling-pair DPO: −log σ(β [(logπ − logπ_ref)(chosen) − (logπ − logπ_ref)(rejected)]), mean over pairs (TreeCUA, card 8).

A pair is two children of one node, so both were sampled after the same tokens; the better one by the estimator's advantage
is chosen. Rows hold pairs instead of paths: the chosen child's tokens, then the rejected one's.
"""

from typing import ClassVar

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.aggregate import Totals
from services.learner.losses.composed import Measures
from services.learner.losses.kl import Kl
from services.learner.losses.tokens import Tokens
from services.learner.model.tempered import Softening
from services.learner.packing.loss_targets import Taught


class Dpo(settings.Dpo):
    """The loss with its settings."""

    needs_reference: ClassVar[bool] = True
    reward_kl: ClassVar[Kl | None] = None
    surveys: ClassVar[bool] = False
    entropy: ClassVar[float] = 0.0
    softening: ClassVar[Softening | None] = None

    @property
    def taught(self) -> Taught:
        """Pairs of siblings."""
        return Taught(pairs=self.pairs, margin=self.margin)

    def survey(self, tokens: Tokens) -> tuple[float, float]:
        """Never asked for."""
        raise AssertionError("dpo surveys nothing")

    def of(self, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Measures]:
        """What a row's pairs add to the loss of the batch."""
        assert tokens.reference_P_T is not None
        gained_P = (
            (tokens.logp_P_T - tokens.reference_P_T).masked_fill(~tokens.mask_P_T, 0.0).sum(1)
        )
        margin = self.beta * (gained_P[0::2] - gained_P[1::2])
        loss = -torch.nn.functional.logsigmoid(margin).sum() / max(1, totals.paths // 2)
        return loss, {
            "pairs_right": (float((margin > 0).sum()), float(len(margin))),
            "pairs_margin": (float(margin.detach().sum()), float(len(margin))),
        }
