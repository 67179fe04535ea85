"""The results of a pass over unique tokens, gathered to the paths of a sequence for its loss."""

from typing import Any

import torch

from services.learner.losses.tokens import Tokens
from services.learner.model.load import Pass
from services.learner.packing.packing import PackedSequence


def tokens(
    sequence: PackedSequence,
    result: Pass,
    proximal_E: torch.Tensor | None = None,
    reference_E: torch.Tensor | None = None,
) -> Tokens:
    """Return a sequence's tokens, as its loss takes them.

    result: the pass over the sequence
    proximal_E: log-probs by prediction of the weights at the start of the batch; None where the
        pass is of these weights
    reference_E: log-probs by prediction of the reference policy
    """

    def tensor(values: Any) -> torch.Tensor:
        return torch.from_numpy(values).to(result.logp_E.device)

    def at_places(values_R: torch.Tensor) -> torch.Tensor:
        return values_R[tensor(sequence.row_E)][index_P_T]

    index_P_T = tensor(sequence.index_P_T)
    logp_P_T = result.logp_E[index_P_T]
    current = logp_P_T.detach()
    reference_P_T = None if reference_E is None else reference_E[index_P_T].to(current.dtype)
    return Tokens(
        logp_P_T=logp_P_T,
        proximal_P_T=current if proximal_E is None else proximal_E[index_P_T],
        behaviour_P_T=tensor(sequence.behaviour_P_T).to(current.dtype),
        drawn_P_T=tensor(sequence.drawn_P_T).to(current.dtype),
        foreign_P_T=tensor(sequence.foreign_P_T),
        advantage_P_T=tensor(sequence.advantage_P_T).to(current.dtype),
        mask_P_T=tensor(sequence.mask_P_T),
        share_P_T=tensor(sequence.share_P_T).to(current.dtype),
        origin_P_T=tensor(sequence.origin_P_T),
        entropy_P_T=at_places(result.entropy_R),
        reference_P_T=reference_P_T,
        soft_P_T=None if result.soft_E is None else result.soft_E[index_P_T],
        soft_mean_P_T=None if result.soft_mean_R is None else at_places(result.soft_mean_R),
    )
