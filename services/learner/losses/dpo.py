"""Sibling-pair DPO: −log σ(β [(logπ − logπ_ref)(chosen) − (logπ − logπ_ref)(rejected)]), mean over pairs (TreeCUA, card 8).

A pair is two children of one node, so both were sampled after the same tokens; the better one by the estimator's advantage
is chosen. Rows hold pairs instead of paths: the chosen child's tokens, then the rejected one's.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from services.learner.losses.aggregate import Totals
from services.learner.losses.composed import Measures
from services.learner.losses.kl import Kl
from services.learner.losses.tokens import Tokens
from services.learner.taught import PAIRS, Taught


@dataclass(frozen=True)
class Dpo:
    """beta: how far the policy may leave the reference. pairs: `best`, the best child with each that is worse; `all`, each
    child with each that is worse. margin: by how much the advantages must differ at least."""

    beta: float = 0.1
    pairs: str = "best"
    margin: float = 1e-6

    needs_reference: ClassVar[bool] = True
    reward_kl: ClassVar[Kl | None] = None
    surveys: ClassVar[bool] = False
    entropy: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta {self.beta} must be above 0")
        if self.pairs not in PAIRS:
            raise ValueError(f"pairs {self.pairs!r} must be one of {', '.join(PAIRS)}")
        if self.margin <= 0:
            raise ValueError(f"margin {self.margin} must be above 0")

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
        gained_P = (tokens.logp_P_T - tokens.reference_P_T).masked_fill(~tokens.mask_P_T, 0.0).sum(1)
        margin = self.beta * (gained_P[0::2] - gained_P[1::2])
        loss = -torch.nn.functional.logsigmoid(margin).sum() / max(1, totals.paths // 2)
        return loss, {
            "pairs_right": (float((margin > 0).sum()), float(len(margin))),
            "pairs_margin": (float(margin.detach().sum()), float(len(margin))),
        }
