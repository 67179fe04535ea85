"""Draws of tokens from logits.

The inverse CDF is taken at a given uniform number, so that only key and position decide a draw.
D distributions may serve R ≥ D rows (the branches of one prompt share its last logits). The
behaviour log-prob is log softmax(logits / T) over the full vocabulary in float32, before
truncation; T = 0 is greedy with T = 1 log-probs. The CDF has two levels (blocks of 256 tokens, then
within a block, both in float64): one pass instead of a full cumsum. A forced token takes the place
of the drawn one; its log-probs and signals are computed in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from banyan.segment import IntTokens, Sampling
from services.rollout.engines.torch_engine.samples import Samples, TopTokens
from services.rollout.engines.torch_engine.top_tokens import top_tokens

_BLOCK = 256
# Distributions at once: their work arrays stay in a processor's cache and are reused. Elsewhere
# calls cost more.
_CHUNK, _CHUNK_ELSEWHERE = 16, 256


@dataclass(frozen=True, slots=True, eq=False)
class Extras:
    """Requests of rows beyond a draw.

    forced_R: the forced next token, or -1.
    top_count_R: the number of likeliest tokens to return.
    embeddings_V_H: the model's embeddings, if a row requests semantic scores.
    """

    forced_R: IntTokens
    top_count_R: npt.NDArray[np.int64]
    embeddings_V_H: torch.Tensor | None = None

    def __getitem__(self, rows: slice) -> "Extras":
        return Extras(self.forced_R[rows], self.top_count_R[rows], self.embeddings_V_H)


def draw(
    logits_D_V: torch.Tensor,
    sampling_D: Sequence[Sampling],
    distribution_R: Sequence[int],
    u_R: npt.NDArray[np.float64],
    extras: Extras | None = None,
) -> Samples:
    """Draw a token for each row r from distribution_R[r] at the uniform number u_R[r].

    distribution_R must not decrease.
    """
    source_R = np.asarray(distribution_R)
    at_once = _CHUNK if logits_D_V.device.type == "cpu" else _CHUNK_ELSEWHERE
    samples = _empty_samples(len(source_R), extras)
    for first in range(0, len(sampling_D), at_once):
        begin, end = np.searchsorted(source_R, (first, first + at_once))
        rows = slice(int(begin), int(end))
        last = min(first + at_once, len(sampling_D))
        chunk = _draw(
            logits_D_V[first:last],
            sampling_D[first:last],
            distribution_R=source_R[rows] - first,
            u_R=u_R[rows],
            extras=None if extras is None else extras[rows],
        )
        samples.tokens_R[rows] = chunk.tokens_R
        samples.logprobs_R[rows] = chunk.logprobs_R
        samples.sampled_logprobs_R[rows] = chunk.sampled_logprobs_R
        samples.entropies_R[rows] = chunk.entropies_R
        if samples.top_tokens is not None and chunk.top_tokens is not None:
            _copy_top_tokens(samples.top_tokens, chunk.top_tokens, rows)
    return samples


def _empty_samples(rows: int, extras: Extras | None) -> Samples:
    return Samples(
        tokens_R=np.zeros(rows, np.int32),
        logprobs_R=np.zeros(rows, np.float32),
        sampled_logprobs_R=np.zeros(rows, np.float32),
        entropies_R=np.zeros(rows, np.float32),
        top_tokens=_empty_top_tokens(extras),
    )


def _empty_top_tokens(extras: Extras | None) -> TopTokens | None:
    width = int(extras.top_count_R.max(initial=0)) if extras is not None else 0
    if extras is None or not width:
        return None
    rows = len(extras.top_count_R)
    semantic_width = width if extras.embeddings_V_H is not None else 0
    return TopTokens(
        ids_R_K=np.zeros((rows, width), np.int32),
        logprobs_R_K=np.zeros((rows, width), np.float32),
        semantic_R_K=np.zeros((rows, semantic_width), np.float32),
    )


def _copy_top_tokens(target: TopTokens, chunk: TopTokens, rows: slice) -> None:
    target.ids_R_K[rows, : chunk.ids_R_K.shape[1]] = chunk.ids_R_K
    target.logprobs_R_K[rows, : chunk.logprobs_R_K.shape[1]] = chunk.logprobs_R_K
    target.semantic_R_K[rows, : chunk.semantic_R_K.shape[1]] = chunk.semantic_R_K


def _draw(
    logits_D_V: torch.Tensor,
    sampling_D: Sequence[Sampling],
    *,
    distribution_R: npt.NDArray[np.int64],
    u_R: npt.NDArray[np.float64],
    extras: Extras | None,
) -> Samples:
    source, u = (torch.from_numpy(x).to(logits_D_V.device) for x in (distribution_R, u_R))
    raw_D_V = torch.log_softmax(logits_D_V, -1, dtype=torch.float32)
    vocabulary = raw_D_V.shape[1]
    p_D_V = _padded_exp(raw_D_V)
    entropy_D = -_dot(p_D_V[:, :vocabulary], raw_D_V)
    lp_D_V = raw_D_V
    if any(s.temperature not in (0.0, 1.0) for s in sampling_D):
        temperatures = [s.temperature or 1.0 for s in sampling_D]
        temperature_D = torch.tensor(temperatures, device=logits_D_V.device)
        lp_D_V = torch.log_softmax(logits_D_V.float() / temperature_D[:, None], -1)
        p_D_V = _padded_exp(lp_D_V)
    biased_D_V = _biased(lp_D_V, p_D_V, sampling_D)
    for d, sampling in enumerate(sampling_D):
        if sampling.truncated and sampling.temperature:
            p_D_V[d, :vocabulary] *= kept(p_D_V[d, :vocabulary], sampling)
    tokens, log_mass = _pick(p_D_V, source, u)
    greedy_D = torch.tensor([s.temperature == 0.0 for s in sampling_D])
    if bool(greedy_D.any()):
        greedy_R = greedy_D.to(source.device)[source]
        tokens = torch.where(greedy_R, biased_D_V.argmax(-1)[source], tokens)
    top = None
    if extras is not None:
        tokens = _with_forced(tokens, extras.forced_R)
        if extras.top_count_R.any():
            top = top_tokens(raw_D_V, distribution_R, extras.top_count_R, extras.embeddings_V_H)
    logprobs = lp_D_V[source, tokens]
    sampled_logprobs = biased_D_V[source, tokens] - log_mass.float()
    floats = torch.stack((logprobs, sampled_logprobs, entropy_D[source])).cpu().numpy()
    return Samples(
        tokens_R=tokens.int().cpu().numpy(),
        logprobs_R=floats[0],
        sampled_logprobs_R=floats[1],
        entropies_R=floats[2],
        top_tokens=top,
    )


def _biased(
    lp_D_V: torch.Tensor, p_D_V: torch.Tensor, sampling_D: Sequence[Sampling]
) -> torch.Tensor:
    """Return log softmax((logits + bias) / T), and set p_D_V accordingly where there is bias."""
    if not any(sampling.bias for sampling in sampling_D):
        return lp_D_V
    biased_D_V = lp_D_V.clone()
    for d, sampling in enumerate(sampling_D):
        if sampling.bias:
            tokens = torch.tensor([token for token, _ in sampling.bias], device=lp_D_V.device)
            bias = torch.tensor([added for _, added in sampling.bias], device=lp_D_V.device)
            biased_D_V[d].index_add_(0, tokens, bias / (sampling.temperature or 1.0))
            biased_D_V[d] = torch.log_softmax(biased_D_V[d], -1)
            p_D_V[d, : lp_D_V.shape[1]] = biased_D_V[d].exp()
    return biased_D_V


def _with_forced(tokens_R: torch.Tensor, forced_R: IntTokens) -> torch.Tensor:
    forced = torch.from_numpy(forced_R.astype(np.int64)).to(tokens_R.device)
    return torch.where(forced < 0, tokens_R, forced)


def _padded_exp(lp_D_V: torch.Tensor) -> torch.Tensor:
    """Return exp(lp), padded with zeros to whole blocks."""
    behind = -lp_D_V.shape[1] % _BLOCK
    return torch.nn.functional.pad(lp_D_V.exp(), (0, behind)) if behind else lp_D_V.exp()


def _dot(p_D_V: torch.Tensor, lp_D_V: torch.Tensor) -> torch.Tensor:
    """Return row-wise Σ p · lp, where 0 times minus infinity counts as 0."""
    sums: torch.Tensor = torch.linalg.vecdot(p_D_V, lp_D_V)
    if bool(sums.isnan().any()):
        sums = torch.linalg.vecdot(p_D_V, lp_D_V.nan_to_num(neginf=0.0))
    return sums


def kept(p_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return 1 for tokens that top_k, then top_p of the rest, keep (at least one), 0 for others."""
    ordered, index = torch.sort(p_V, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1.0:
        mass = (ordered * keep).double()
        before = mass.cumsum(0) - mass
        keep &= before < sampling.top_p * mass.sum()
    keep[0] = True
    return torch.zeros_like(p_V).scatter_(0, index, keep.to(p_V.dtype))


def _pick(
    p_D_V: torch.Tensor, source: torch.Tensor, u_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's token by inverse CDF, and its distribution's log mass (0 if whole)."""
    blocks = p_D_V.view(p_D_V.shape[0], -1, _BLOCK)
    cum_R_B = blocks.sum(-1).double().cumsum(1)[source]
    total = cum_R_B[:, -1]
    target = _below(u_R * total, total)
    b = torch.searchsorted(cum_R_B, target[:, None], right=True)
    upper = cum_R_B.gather(1, b)
    lower = torch.where(b > 0, cum_R_B.gather(1, (b - 1).clamp(min=0)), 0.0)
    inner = blocks[source, b[:, 0]].double().cumsum(1)
    mass = inner[:, -1:]
    part = _below((target[:, None] - lower) / (upper - lower) * mass, mass)
    token = b * _BLOCK + torch.searchsorted(inner, part, right=True)
    return token[:, 0], total.log()


def _below(x: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Return x, but strictly below the bound even where rounding reached it."""
    return torch.minimum(x, torch.nextafter(bound, torch.zeros_like(bound)))
