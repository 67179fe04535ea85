"""Hand-made tokens for tests of losses, in float64, with neutral values by default."""

from typing import Any

import torch

from services.learner.losses.tokens import Tokens


def table(values: Any) -> torch.Tensor:
    """Return [P, T] of a number, a line or lines."""
    tensor = torch.as_tensor(values, dtype=torch.float64)
    while tensor.dim() < 2:
        tensor = tensor[None]
    return tensor


def tokens(logp: Any, old: Any = 0.0, advantage: Any = 1.0, **more: Any) -> Tokens:
    """Return the tokens with these log-probs.

    old: log-prob by the weights at the start of the batch and at sampling, unless `proximal`,
        `behaviour` or `drawn` are passed.
    more: values of other fields, by name without axes.
    """
    logp_P_T = logp if isinstance(logp, torch.Tensor) and logp.dim() == 2 else table(logp)

    def like(name: str, default: Any) -> torch.Tensor:
        return table(more.get(name, default)).expand(logp_P_T.shape).clone()

    behaviour = more.get("behaviour", more.get("proximal", old))
    reference = more.get("reference")
    return Tokens(
        logp_P_T=logp_P_T,
        proximal_P_T=like("proximal", old),
        behaviour_P_T=like("behaviour", old),
        drawn_P_T=like("drawn", behaviour),
        foreign_P_T=like("foreign", 0).bool(),
        advantage_P_T=table(advantage).expand(logp_P_T.shape).clone(),
        mask_P_T=like("mask", 1).bool(),
        share_P_T=like("share", 1.0),
        origin_P_T=like("origin", 0).long(),
        entropy_P_T=more.get("entropy", like("none", 0.0)),
        reference_P_T=None
        if reference is None
        else table(reference).expand(logp_P_T.shape).clone(),
    )
