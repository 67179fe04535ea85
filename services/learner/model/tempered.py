"""The distribution that one-token rollouts draw from: the policy at a higher temperature.

OTR (arXiv 2509.26313). π' = softmax(logits / (T κ)) has no gradient; π = softmax(logits / T) has.
All draws at a place come down to two numbers: log π' of the label, and the mean log-prob of a draw,
C = Σ_a π'(a) max(log π(a), −20). Below −20 a token has no gradient: a loss that pushes tokens away
would never stop pushing them.
"""

from typing import Any, NamedTuple

import torch

from services.learner.model.logprobs import cap_slope_of, chunks, logits_of
from services.learner.packing.packing import PackedSequence

LEAST = -20.0


class Softening(NamedTuple):
    """Settings of π'.

    kappa: κ.
    mean: true if the loss needs C besides log π' of the label.
    """

    kappa: float
    mean: bool


class _Saved(NamedTuple):
    """Tensors that the backward pass needs."""

    hidden_R_D: torch.Tensor
    weight_V_D: torch.Tensor
    temperature_R: torch.Tensor
    readout_E: torch.Tensor


class _Softened(torch.autograd.Function):
    """log π' of predictions (readout_E, token_E), sorted by readout; and C of each readout."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_R_D: torch.Tensor,
        weight_V_D: torch.Tensor,
        temperature_R: torch.Tensor,
        readout_E: torch.Tensor,
        token_E: torch.Tensor,
        kappa: float,
        cap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(hidden_R_D.dtype, torch.float32)
        soft_E = torch.empty(len(readout_E), dtype=wide, device=hidden_R_D.device)
        mean_R = torch.empty(len(hidden_R_D), dtype=wide, device=hidden_R_D.device)
        for chunk, predictions in chunks(len(hidden_R_D), len(weight_V_D), readout_E):
            logits = logits_of(hidden_R_D[chunk], weight_V_D, temperature_R[chunk], cap)
            soft = torch.log_softmax(logits / kappa, 1)
            soft_E[predictions] = soft[readout_E[predictions] - chunk.start, token_E[predictions]]
            mean_R[chunk] = torch.linalg.vecdot(soft.exp(), logits.log_softmax(1).clamp_min(LEAST))
        ctx.save_for_backward(hidden_R_D, weight_V_D, temperature_R, readout_E)
        ctx.kappa, ctx.cap = kappa, cap
        ctx.mark_non_differentiable(soft_E)
        ctx.set_materialize_grads(False)
        return soft_E, mean_R

    @staticmethod
    def backward(ctx: Any, _: Any, grad_R: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if grad_R is None:
            return (None,) * 7
        saved = _Saved._make(ctx.saved_tensors)
        hidden_R_D, weight_V_D = saved.hidden_R_D, saved.weight_V_D
        grad_hidden_R_D = torch.empty_like(hidden_R_D)
        grad_weight_V_D: torch.Tensor | None = None
        for chunk, _predictions in chunks(len(hidden_R_D), len(weight_V_D), saved.readout_E):
            hidden, temperature = hidden_R_D[chunk], saved.temperature_R[chunk]
            logits = logits_of(hidden, weight_V_D, temperature, ctx.cap)
            logp = logits.log_softmax(1)
            pushed = torch.softmax(logits / ctx.kappa, 1) * (logp > LEAST)
            scaled_grad = (grad_R[chunk] / temperature.to(grad_R.dtype))[:, None]
            slope = (pushed - logp.exp() * pushed.sum(1, keepdim=True)) * scaled_grad
            if ctx.cap is not None:
                slope = slope * cap_slope_of(logits, temperature, ctx.cap)
            slope = slope.to(hidden.dtype)
            grad_hidden_R_D[chunk] = slope @ weight_V_D
            if ctx.needs_input_grad[1]:
                grad = (slope.t() @ hidden).to(grad_R.dtype)
                grad_weight_V_D = grad if grad_weight_V_D is None else grad_weight_V_D.add_(grad)
        if grad_weight_V_D is not None:
            grad_weight_V_D = grad_weight_V_D.to(weight_V_D.dtype)
        return grad_hidden_R_D, grad_weight_V_D, *(None,) * 5


def softened(
    hidden_U_D: torch.Tensor,
    weight_V_D: torch.Tensor,
    sequence: PackedSequence,
    softening: Softening,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log π' of each prediction, without a gradient; and C of each readout, if needed.

    cap: soft cap of the logits.
    """

    def tensor(values: Any) -> torch.Tensor:
        return torch.from_numpy(values).to(hidden_U_D.device)

    with torch.set_grad_enabled(softening.mean and torch.is_grad_enabled()):
        soft_E, mean_R = _Softened.apply(  # type: ignore[no-untyped-call]
            hidden_U_D[tensor(sequence.place_R)],
            weight_V_D,
            tensor(sequence.temperature_R),
            tensor(sequence.readout_E),
            tensor(sequence.token_E),
            softening.kappa,
            cap,
        )
    return soft_E, mean_R if softening.mean else None
