"""Gathers what a forward pass gives of unique tokens back to the paths of a row: what its loss is taken on."""

from typing import Any

import torch

from services.learner.losses.tokens import Tokens
from services.learner.model.load import Pass
from services.learner.packing.packing import PackedSequence


def tokens(
    row: PackedSequence,
    said: Pass,
    proximal_E: torch.Tensor | None = None,
    reference_E: torch.Tensor | None = None,
) -> Tokens:
    """A row's tokens. proximal: by prediction, of the weights at the start of the batch; None where these are the same."""

    def tensor(values: Any) -> torch.Tensor:
        return torch.from_numpy(values).to(said.logp_E.device)

    def at_places(values_R: torch.Tensor) -> torch.Tensor:
        return values_R[tensor(row.readout_E)][index_P_T]

    index_P_T = tensor(row.index_P_T)
    logp_P_T = said.logp_E[index_P_T]
    current = logp_P_T.detach()
    return Tokens(
        logp_P_T=logp_P_T,
        proximal_P_T=current if proximal_E is None else proximal_E[index_P_T],
        behaviour_P_T=tensor(row.behaviour_P_T).to(current.dtype),
        drawn_P_T=tensor(row.drawn_P_T).to(current.dtype),
        foreign_P_T=tensor(row.foreign_P_T),
        advantage_P_T=tensor(row.advantage_P_T).to(current.dtype),
        mask_P_T=tensor(row.mask_P_T),
        share_P_T=tensor(row.share_P_T).to(current.dtype),
        origin_P_T=tensor(row.origin_P_T),
        entropy_P_T=at_places(said.entropy_R),
        reference_P_T=None if reference_E is None else reference_E[index_P_T].to(current.dtype),
        soft_P_T=None if said.soft_E is None else said.soft_E[index_P_T],
        soft_mean_P_T=None if said.soft_mean_R is None else at_places(said.soft_mean_R),
    )
