"""What one-token rollouts draw from: the policy at a higher temperature (OTR, arXiv 2509.26313).

π' = softmax(logits / (T κ)) has no gradient; π = softmax(logits / T) has. All draws at a place come down to two numbers:
log π' of the label, and what the log-prob of a draw is in the mean, C = Σ_a π'(a) max(log π(a), −20). Behind −20 a token has
no gradient: a loss that pushes tokens away would push them for ever.
"""

from typing import Any, NamedTuple

import torch

from services.learner.model.logprobs import bend_of, chunks, logits_of
from services.learner.packing.packing import PackedSequence

LEAST = -20.0


class Softening(NamedTuple):
    """κ, and whether the mean over draws is needed beside the label's own."""

    kappa: float
    mean: bool


class _Softened(torch.autograd.Function):
    """log π' of predictions (row_E, token_E), sorted by row, and C of each place."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_R_H: torch.Tensor,
        weight_V_H: torch.Tensor,
        temperature_R: torch.Tensor,
        row_E: torch.Tensor,
        token_E: torch.Tensor,
        kappa: float,
        cap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(hidden_R_H.dtype, torch.float32)
        soft_E = torch.empty(len(row_E), dtype=wide, device=hidden_R_H.device)
        mean_R = torch.empty(len(hidden_R_H), dtype=wide, device=hidden_R_H.device)
        for places, predictions in chunks(len(hidden_R_H), weight_V_H.shape[0], row_E):
            logits = logits_of(hidden_R_H[places], weight_V_H, temperature_R[places], cap)
            soft = torch.log_softmax(logits / kappa, 1)
            soft_E[predictions] = soft[row_E[predictions] - places.start, token_E[predictions]]
            mean_R[places] = torch.linalg.vecdot(soft.exp(), logits.log_softmax(1).clamp_min(LEAST))
        ctx.save_for_backward(hidden_R_H, weight_V_H, temperature_R, row_E)
        ctx.kappa, ctx.cap = kappa, cap
        ctx.mark_non_differentiable(soft_E)
        ctx.set_materialize_grads(False)
        return soft_E, mean_R

    @staticmethod
    def backward(ctx: Any, _: Any, grad_R: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden_R_H, weight_V_H, temperature_R, row_E = ctx.saved_tensors
        if grad_R is None:
            return (None,) * 7
        grad_hidden, grad_weight = torch.empty_like(hidden_R_H), None
        for places, _ in chunks(len(hidden_R_H), weight_V_H.shape[0], row_E):
            hidden, cool = hidden_R_H[places], temperature_R[places]
            logits = logits_of(hidden, weight_V_H, cool, ctx.cap)
            logp = logits.log_softmax(1)
            open_ = torch.softmax(logits / ctx.kappa, 1) * (logp > LEAST)
            slope = (open_ - logp.exp() * open_.sum(1, keepdim=True)) * (
                grad_R[places] / cool.to(grad_R.dtype)
            )[:, None]
            if ctx.cap is not None:
                slope = slope * bend_of(logits, cool, ctx.cap)
            slope = slope.to(hidden.dtype)
            grad_hidden[places] = slope @ weight_V_H
            if ctx.needs_input_grad[1]:
                grad = (slope.t() @ hidden).to(grad_R.dtype)
                grad_weight = grad if grad_weight is None else grad_weight.add_(grad)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_V_H.dtype),
            *(None,) * 5,
        )


def softened(
    hidden_N_H: torch.Tensor,
    weight_V_H: torch.Tensor,
    row: PackedSequence,
    softening: Softening,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log π' of each prediction of a row, without a gradient; and C of each place, if it is needed. cap: of logits."""
    arrays = row.place_R, row.temperature_R, row.row_E, row.token_E
    place_R, temperature_R, row_E, token_E = (
        torch.from_numpy(a).to(hidden_N_H.device) for a in arrays
    )
    with torch.set_grad_enabled(softening.mean and torch.is_grad_enabled()):
        given = hidden_N_H[place_R], weight_V_H, temperature_R, row_E, token_E, softening.kappa, cap
        soft_E, mean_R = _Softened.apply(*given)  # type: ignore[no-untyped-call]
    return soft_E, mean_R if softening.mean else None
