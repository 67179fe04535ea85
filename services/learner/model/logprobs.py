"""Log-probs of chosen tokens from hidden states, without ever holding all logits.

Logits are made in chunks of readouts, divided by the readout's temperature and normalised in at
least float32. The backward pass uses the kept probabilities (in the model's own precision), or
makes a chunk's logits again if the probabilities would be too many.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from services.learner.packing.packing import PackedSequence

CHUNK_NUMBERS = 1 << 25  # logits made at once: 128 MiB in float32
KEPT_NUMBERS = 1 << 28  # probabilities kept for the backward pass: 512 MiB in bfloat16


class _Saved(NamedTuple):
    """Tensors that the backward pass needs."""

    hidden_R_D: torch.Tensor
    weight_V_D: torch.Tensor
    temperature_R: torch.Tensor
    readout_E: torch.Tensor
    token_E: torch.Tensor
    logp_E: torch.Tensor
    entropy_R: torch.Tensor


class _TokenLogProbs(torch.autograd.Function):
    """logp_E of predictions (readout_E, token_E), sorted by readout; and the entropy_R."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_R_D: torch.Tensor,
        weight_V_D: torch.Tensor,
        temperature_R: torch.Tensor,
        readout_E: torch.Tensor,
        token_E: torch.Tensor,
        cap: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        readouts, vocabulary = len(hidden_R_D), len(weight_V_D)
        wide = torch.promote_types(hidden_R_D.dtype, torch.float32)
        logp_E = torch.empty(len(readout_E), dtype=wide, device=hidden_R_D.device)
        entropy_R = torch.empty(readouts, dtype=wide, device=hidden_R_D.device)
        keep = readouts * vocabulary <= KEPT_NUMBERS and cap is None
        kept: list[torch.Tensor] = []
        for chunk, predictions in chunks(readouts, vocabulary, readout_E):
            logits = logits_of(hidden_R_D[chunk], weight_V_D, temperature_R[chunk], cap)
            probabilities = logits.softmax(1)
            top, at_top = logits.max(1)
            # Log-sum-exp without a second exponential.
            total = top - probabilities.gather(1, at_top[:, None])[:, 0].log()
            row = readout_E[predictions] - chunk.start
            logp_E[predictions] = logits[row, token_E[predictions]] - total[row]
            entropy_R[chunk] = total - torch.linalg.vecdot(probabilities, logits)
            kept.append(probabilities.to(hidden_R_D.dtype) if keep else torch.empty(0))
        saved = _Saved(
            hidden_R_D=hidden_R_D,
            weight_V_D=weight_V_D,
            temperature_R=temperature_R,
            readout_E=readout_E,
            token_E=token_E,
            logp_E=logp_E,
            entropy_R=entropy_R,
        )
        ctx.save_for_backward(*saved)
        ctx.kept, ctx.cap = kept, cap
        ctx.set_materialize_grads(False)  # entropies without a gradient cost nothing
        return logp_E, entropy_R

    @staticmethod
    def backward(
        ctx: Any, grad_E: torch.Tensor | None, grad_R: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        saved = _Saved._make(ctx.saved_tensors)
        hidden_R_D, weight_V_D = saved.hidden_R_D, saved.weight_V_D
        grad_E = torch.zeros_like(saved.logp_E) if grad_E is None else grad_E
        grad_hidden_R_D = torch.empty_like(hidden_R_D)
        grad_weight_V_D: torch.Tensor | None = None
        spans = list(chunks(len(hidden_R_D), len(weight_V_D), saved.readout_E))
        probabilities = ctx.kept or [torch.empty(0)] * len(spans)  # used up by the first pass
        for (chunk, predictions), kept in zip(spans, probabilities, strict=True):
            slope = _logit_gradient(
                saved,
                chunk,
                predictions,
                probabilities=kept,
                grad_E=grad_E,
                grad_R=grad_R,
                cap=ctx.cap,
            )
            grad_hidden_R_D[chunk] = slope @ weight_V_D
            if not ctx.needs_input_grad[1]:  # a frozen output layer
                continue
            grad = slope.t() @ hidden_R_D[chunk]
            if len(spans) > 1:
                grad = grad.to(grad_E.dtype)
            grad_weight_V_D = grad if grad_weight_V_D is None else grad_weight_V_D.add_(grad)
        ctx.kept = []
        if grad_weight_V_D is not None:
            grad_weight_V_D = grad_weight_V_D.to(weight_V_D.dtype)
        return grad_hidden_R_D, grad_weight_V_D, None, None, None, None


def _logit_gradient(
    saved: _Saved,
    chunk: slice,
    predictions: slice,
    *,
    probabilities: torch.Tensor,
    grad_E: torch.Tensor,
    grad_R: torch.Tensor | None,
    cap: float | None,
) -> torch.Tensor:
    """Return the gradient of a chunk's untempered logits, in the precision of the model.

    probabilities: kept ones, which are overwritten; empty to make them again.
    """
    hidden, temperature = saved.hidden_R_D[chunk], saved.temperature_R[chunk]
    cap_slope: torch.Tensor | None = None
    if not len(probabilities):
        logits = logits_of(hidden, saved.weight_V_D, temperature, cap)
        if cap is not None:
            cap_slope = cap_slope_of(logits, temperature, cap)
        probabilities = logits.softmax(1).to(hidden.dtype)
    row = saved.readout_E[predictions] - chunk.start
    p_E = saved.logp_E[predictions].exp()
    sums = torch.zeros(len(hidden), dtype=grad_E.dtype, device=grad_E.device)
    sums.index_add_(0, row, grad_E[predictions])
    divisor = temperature.to(grad_E.dtype)
    spread: torch.Tensor | None = None
    if grad_R is not None:
        spread = _entropy_gradient(probabilities, saved.entropy_R[chunk], grad_R[chunk] / divisor)
    slope = probabilities.mul_((-sums / divisor).to(probabilities.dtype)[:, None])
    exact = (grad_E[predictions] - sums[row] * p_E) / divisor[row]
    # 1 − p of a sure token is lost in bfloat16.
    slope[row, saved.token_E[predictions]] = exact.to(slope.dtype)
    if spread is not None:
        slope += spread.to(slope.dtype)
    if cap_slope is not None:
        slope *= cap_slope.to(slope.dtype)
    return slope


def _entropy_gradient(
    p_R_V: torch.Tensor, entropy_R: torch.Tensor, grad_R: torch.Tensor
) -> torch.Tensor:
    """Return what the gradients of entropies add to those of logits: −p (log p + H)."""
    wide = p_R_V.to(entropy_R.dtype)
    return -(torch.xlogy(wide, wide) + wide * entropy_R[:, None]) * grad_R[:, None]


def logits_of(
    hidden_R_D: torch.Tensor,
    weight_V_D: torch.Tensor,
    temperature_R: torch.Tensor,
    cap: float | None,
) -> torch.Tensor:
    """Return [R, V]: logits, capped and then tempered, in at least float32."""
    wide = torch.promote_types(hidden_R_D.dtype, torch.float32)
    logits = torch.nn.functional.linear(hidden_R_D, weight_V_D).to(wide)
    if cap is not None:
        logits = logits.div_(cap).tanh_().mul_(cap)
    return logits.div_(temperature_R.to(wide)[:, None])


def cap_slope_of(logits_R_V: torch.Tensor, temperature_R: torch.Tensor, cap: float) -> torch.Tensor:
    """Return the slope of the soft cap c · tanh(x / c), from its tempered output."""
    return 1 - (logits_R_V * (temperature_R.to(logits_R_V.dtype)[:, None] / cap)).square()


def chunks(
    readouts: int, vocabulary: int, readout_E: torch.Tensor
) -> Iterator[tuple[slice, slice]]:
    """Yield runs of readouts with the predictions that are made there."""
    size = max(1, CHUNK_NUMBERS // vocabulary)
    for start in range(0, readouts, size):
        stop = min(start + size, readouts)
        bounds = torch.tensor([start, stop], device=readout_E.device)
        first, last = torch.searchsorted(readout_E, bounds).tolist()
        yield slice(start, stop), slice(first, last)


def token_logprobs(
    hidden_U_D: torch.Tensor,
    weight_V_D: torch.Tensor,
    sequence: PackedSequence,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logp_E, and the entropy_R of the tempered distributions.

    cap: soft cap of the logits.
    """

    def tensor(values: Any) -> torch.Tensor:
        return torch.from_numpy(values).to(hidden_U_D.device)

    return _TokenLogProbs.apply(  # type: ignore[no-any-return,no-untyped-call]
        hidden_U_D[tensor(sequence.place_R)],
        weight_V_D,
        tensor(sequence.temperature_R),
        tensor(sequence.readout_E),
        tensor(sequence.token_E),
        cap,
    )
