"""Log-probs of chosen tokens from hidden states, without ever holding all logits.

Logits are made in chunks of places, divided by the place's temperature, normalised in at least float32. The backward pass
uses the kept probabilities (in the model's own precision), or makes a chunk's logits again where they would be too many.
"""

from collections.abc import Iterator
from typing import Any

import torch

from services.learner.packing.packing import PackedSequence

CHUNK_NUMBERS = 1 << 25  # logits made at once: 128 MiB in float32
KEPT_NUMBERS = 1 << 28  # probabilities kept for the backward pass: 512 MiB in bfloat16


class _TokenLogProbs(torch.autograd.Function):
    """logp_E of predictions (row_E, token_E), sorted by row; and the entropy of each place."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_R_H: torch.Tensor,
        weight_V_H: torch.Tensor,
        temperature_R: torch.Tensor,
        row_E: torch.Tensor,
        token_E: torch.Tensor,
        cap: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(hidden_R_H.dtype, torch.float32)
        logp_E = torch.empty(len(row_E), dtype=wide, device=hidden_R_H.device)
        entropy_R = torch.empty(len(hidden_R_H), dtype=wide, device=hidden_R_H.device)
        keep = hidden_R_H.shape[0] * weight_V_H.shape[0] <= KEPT_NUMBERS and cap is None
        kept: list[torch.Tensor] = []
        for places, predictions in chunks(len(hidden_R_H), weight_V_H.shape[0], row_E):
            logits = logits_of(hidden_R_H[places], weight_V_H, temperature_R[places], cap)
            probabilities = logits.softmax(1)
            top, at_top = logits.max(1)
            total = (
                top - probabilities.gather(1, at_top[:, None])[:, 0].log()
            )  # log-sum-exp without a second exponential
            at = (row_E[predictions] - places.start, token_E[predictions])
            logp_E[predictions] = logits[at] - total[at[0]]
            entropy_R[places] = total - torch.linalg.vecdot(probabilities, logits)
            kept.append(probabilities.to(hidden_R_H.dtype) if keep else torch.empty(0))
        ctx.save_for_backward(
            hidden_R_H, weight_V_H, temperature_R, row_E, token_E, logp_E, entropy_R
        )
        ctx.kept, ctx.cap = kept, cap
        ctx.set_materialize_grads(False)  # entropies without a gradient cost nothing
        return logp_E, entropy_R

    @staticmethod
    def backward(
        ctx: Any, grad_E: torch.Tensor | None, grad_R: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_R_H, weight_V_H, temperature_R, row_E, token_E, logp_E, entropy_R = ctx.saved_tensors
        grad_E = torch.zeros_like(logp_E) if grad_E is None else grad_E
        grad_hidden = torch.empty_like(hidden_R_H)
        grad_weight: torch.Tensor | None = None
        spans = list(chunks(len(hidden_R_H), weight_V_H.shape[0], row_E))
        held = ctx.kept or [torch.empty(0)] * len(spans)  # used up by the first backward pass
        for (places, predictions), kept in zip(spans, held, strict=True):
            hidden = hidden_R_H[places]
            bend: torch.Tensor | None = None
            if not len(kept):
                logits = logits_of(hidden, weight_V_H, temperature_R[places], ctx.cap)
                bend = None if ctx.cap is None else bend_of(logits, temperature_R[places], ctx.cap)
                kept = logits.softmax(1).to(hidden.dtype)
            rows = row_E[predictions] - places.start
            sums = torch.zeros(len(hidden), dtype=grad_E.dtype, device=grad_E.device).index_add_(
                0, rows, grad_E[predictions]
            )
            cool = temperature_R[places].to(grad_E.dtype)
            spread = (
                None if grad_R is None else _spread(kept, entropy_R[places], grad_R[places] / cool)
            )
            slope = kept.mul_((-sums / cool).to(kept.dtype)[:, None])
            exact = (grad_E[predictions] - sums[rows] * logp_E[predictions].exp()) / cool[rows]
            slope[rows, token_E[predictions]] = exact.to(
                slope.dtype
            )  # 1 − p of a sure token is lost in bfloat16
            if spread is not None:
                slope += spread.to(slope.dtype)
            if bend is not None:
                slope *= bend.to(slope.dtype)
            grad_hidden[places] = slope @ weight_V_H
            if not ctx.needs_input_grad[1]:  # a frozen output layer
                continue
            grad = slope.t() @ hidden
            if len(spans) > 1:
                grad = grad.to(grad_E.dtype)
            grad_weight = grad if grad_weight is None else grad_weight.add_(grad)
        ctx.kept = []
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_V_H.dtype),
            None,
            None,
            None,
            None,
        )


def _spread(p: torch.Tensor, entropy_R: torch.Tensor, grad_R: torch.Tensor) -> torch.Tensor:
    """What the gradients of entropies add to those of logits: −p (log p + H)."""
    wide = p.to(entropy_R.dtype)
    return -(torch.xlogy(wide, wide) + wide * entropy_R[:, None]) * grad_R[:, None]


def logits_of(
    hidden: torch.Tensor, weight: torch.Tensor, temperature: torch.Tensor, cap: float | None
) -> torch.Tensor:
    wide = torch.promote_types(hidden.dtype, torch.float32)
    logits = torch.nn.functional.linear(hidden, weight).to(wide)
    if cap is not None:
        logits = logits.div_(cap).tanh_().mul_(cap)
    return logits.div_(temperature.to(wide)[:, None])


def bend_of(logits: torch.Tensor, temperature: torch.Tensor, cap: float) -> torch.Tensor:
    """Slope of the soft cap c · tanh(x / c), from what came out of it over the temperature."""
    return 1 - (logits * (temperature.to(logits.dtype)[:, None] / cap)).square()


def chunks(places: int, vocabulary: int, row_E: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Runs of places with the predictions that are made there."""
    size = max(1, CHUNK_NUMBERS // vocabulary)
    for start in range(0, places, size):
        stop = min(start + size, places)
        first, last = torch.searchsorted(
            row_E, torch.tensor([start, stop], device=row_E.device)
        ).tolist()
        yield slice(start, stop), slice(first, last)


def token_logprobs(
    hidden_N_H: torch.Tensor,
    weight_V_H: torch.Tensor,
    row: PackedSequence,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each prediction of a row, and the entropy of the (tempered) distribution at each place. cap: of logits."""

    def tensor(values: Any) -> torch.Tensor:
        return torch.from_numpy(values).to(hidden_N_H.device)

    place_R = tensor(row.place_R)
    temperature_R, row_E, token_E = (
        tensor(row.temperature_R),
        tensor(row.row_E),
        tensor(row.token_E),
    )
    return _TokenLogProbs.apply(hidden_N_H[place_R], weight_V_H, temperature_R, row_E, token_E, cap)  # type: ignore[no-any-return,no-untyped-call]
