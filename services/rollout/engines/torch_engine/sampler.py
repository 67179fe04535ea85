"""Draws tokens from logits: inverse CDF with a given uniform number, so that only key and position decide a draw.

D distributions may serve R ≥ D rows (the branches of one prompt share its last logits). The behaviour log-prob is
log softmax(logits / T) over the full vocabulary in float32, before truncation; T = 0 is greedy with T = 1 log-probs.
The CDF has two levels (blocks of 256 tokens, then within a block, both in float64): one pass instead of a full cumsum.
A forced token takes the place of the drawn one; what is said of it is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from banyan.segment import IntTokens, Sampling
from services.rollout.engines.torch_engine.samples import Likeliest, Samples
from services.rollout.engines.torch_engine.top_tokens import likeliest

_BLOCK = 256
_CHUNK = 16  # distributions at once: their work arrays stay in the cache and are not returned to the kernel each time


@dataclass(frozen=True, slots=True, eq=False)
class Extras:
    """What rows ask for beyond a draw. forced_R: the token that comes next, or -1. most_R: how many likeliest tokens to
    tell. embeddings_V_H: the model's, if a row asks for semantics."""

    forced_R: IntTokens
    most_R: npt.NDArray[np.int64]
    embeddings_V_H: torch.Tensor | None = None

    def __getitem__(self, rows: slice) -> "Extras":
        return Extras(self.forced_R[rows], self.most_R[rows], self.embeddings_V_H)


def draw(
    logits_D_V: torch.Tensor,
    sampling_D: Sequence[Sampling],
    which_R: Sequence[int],
    u_R: npt.NDArray[np.float64],
    extras: Extras | None = None,
) -> Samples:
    """One token for each row r, from distribution which_R[r] with the uniform number u_R[r]. which_R does not fall."""
    which = np.asarray(which_R)
    floats = [np.zeros(len(which), np.float32) for _ in range(3)]
    out = Samples(np.zeros(len(which), np.int32), floats[0], floats[1], floats[2], _room(extras))
    for first in range(0, len(sampling_D), _CHUNK):
        a, b = np.searchsorted(which, (first, first + _CHUNK))
        last = min(first + _CHUNK, len(sampling_D))
        part = None if extras is None else extras[a:b]
        drawn = _draw(
            logits_D_V[first:last], sampling_D[first:last], which[a:b] - first, u_R[a:b], part
        )
        out.tokens_R[a:b] = drawn.tokens_R
        out.logprobs_R[a:b], out.sampled_R[a:b], out.entropies_R[a:b] = (
            drawn.logprobs_R,
            drawn.sampled_R,
            drawn.entropies_R,
        )
        if out.likeliest is not None and drawn.likeliest is not None:
            _put(out.likeliest, drawn.likeliest, slice(a, b))
    return out


def _room(extras: Extras | None) -> Likeliest | None:
    most = int(extras.most_R.max(initial=0)) if extras is not None else 0
    if extras is None or not most:
        return None
    shape = (len(extras.most_R), most)
    semantic = shape if extras.embeddings_V_H is not None else (shape[0], 0)
    return Likeliest(
        np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(semantic, np.float32)
    )


def _put(into: Likeliest, part: Likeliest, rows: slice) -> None:
    into.ids_R_K[rows, : part.ids_R_K.shape[1]] = part.ids_R_K
    into.logprobs_R_K[rows, : part.logprobs_R_K.shape[1]] = part.logprobs_R_K
    into.semantic_R_K[rows, : part.semantic_R_K.shape[1]] = part.semantic_R_K


def _draw(
    logits_D_V: torch.Tensor,
    sampling_D: Sequence[Sampling],
    which_R: npt.NDArray[np.int64],
    u_R: npt.NDArray[np.float64],
    extras: Extras | None,
) -> Samples:
    which, u = (torch.from_numpy(x).to(logits_D_V.device) for x in (which_R, u_R))
    raw_D_V = torch.log_softmax(logits_D_V, -1, dtype=torch.float32)
    p_D_V = _padded_exp(raw_D_V)
    entropy_D = -_dot(p_D_V[:, : raw_D_V.shape[1]], raw_D_V)
    lp_D_V = raw_D_V
    if any(s.temperature not in (0.0, 1.0) for s in sampling_D):
        temperature_D = torch.tensor(
            [s.temperature or 1.0 for s in sampling_D], device=logits_D_V.device
        )
        lp_D_V = torch.log_softmax(logits_D_V.float() / temperature_D[:, None], -1)
        p_D_V = _padded_exp(lp_D_V)
    drawn_D_V = _biased(lp_D_V, p_D_V, sampling_D)
    for d, s in enumerate(sampling_D):
        if s.truncated and s.temperature:
            p_D_V[d, : lp_D_V.shape[1]] *= kept(p_D_V[d, : lp_D_V.shape[1]], s)
    tokens, log_mass = _pick(p_D_V, which, u)
    greedy_D = torch.tensor([s.temperature == 0.0 for s in sampling_D])
    if bool(greedy_D.any()):
        greedy_R = greedy_D.to(which.device)[which]
        tokens = torch.where(greedy_R, drawn_D_V.argmax(-1)[which], tokens)
    told = None
    if extras is not None:
        tokens = _replaced(tokens, extras.forced_R)
        if extras.most_R.any():
            told = likeliest(raw_D_V, which_R, extras.most_R, extras.embeddings_V_H)
    lp_R = lp_D_V[which, tokens]
    sampled_R = drawn_D_V[which, tokens] - log_mass.float()
    floats = torch.stack((lp_R, sampled_R, entropy_D[which])).cpu().numpy()
    return Samples(tokens.int().cpu().numpy(), floats[0], floats[1], floats[2], told)


def _biased(
    lp_D_V: torch.Tensor, p_D_V: torch.Tensor, sampling_D: Sequence[Sampling]
) -> torch.Tensor:
    """Log-probs with logit bias, where there is one, and p_D_V with them: log softmax((logits + bias) / T)."""
    if not any(s.bias for s in sampling_D):
        return lp_D_V
    biased_D_V = lp_D_V.clone()
    for d, s in enumerate(sampling_D):
        if s.bias:
            tokens = torch.tensor([token for token, _ in s.bias], device=lp_D_V.device)
            added = torch.tensor([added for _, added in s.bias], device=lp_D_V.device) / (
                s.temperature or 1.0
            )
            biased_D_V[d].index_add_(0, tokens, added)
            biased_D_V[d] = torch.log_softmax(biased_D_V[d], -1)
            p_D_V[d, : lp_D_V.shape[1]] = biased_D_V[d].exp()
    return biased_D_V


def _replaced(tokens_R: torch.Tensor, forced_R: IntTokens) -> torch.Tensor:
    forced = torch.from_numpy(forced_R.astype(np.int64)).to(tokens_R.device)
    return torch.where(forced < 0, tokens_R, forced)


def _padded_exp(lp_D_V: torch.Tensor) -> torch.Tensor:
    """exp, with zeros behind so that the vocabulary divides into blocks."""
    behind = -lp_D_V.shape[1] % _BLOCK
    return torch.nn.functional.pad(lp_D_V.exp(), (0, behind)) if behind else lp_D_V.exp()


def _dot(p_D_V: torch.Tensor, lp_D_V: torch.Tensor) -> torch.Tensor:
    """Row-wise Σ p · lp, where 0 times minus infinity counts as 0."""
    sums: torch.Tensor = torch.linalg.vecdot(p_D_V, lp_D_V)
    if bool(sums.isnan().any()):
        sums = torch.linalg.vecdot(p_D_V, lp_D_V.nan_to_num(neginf=0.0))
    return sums


def kept(p_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """1 for the tokens that top_k and then top_p (of what top_k left) keep; at least one."""
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
    p_D_V: torch.Tensor, which: torch.Tensor, u_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token of each row by inverse CDF, and the log of its distribution's mass (0 unless truncated)."""
    blocks = p_D_V.view(p_D_V.shape[0], -1, _BLOCK)
    cum_R_B = blocks.sum(-1).double().cumsum(1)[which]
    total = cum_R_B[:, -1]
    target = _below(u_R * total, total)
    b = torch.searchsorted(cum_R_B, target[:, None], right=True)
    upper = cum_R_B.gather(1, b)
    lower = torch.where(b > 0, cum_R_B.gather(1, (b - 1).clamp(min=0)), 0.0)
    inner = blocks[which, b[:, 0]].double().cumsum(1)
    mass = inner[:, -1:]
    part = _below((target[:, None] - lower) / (upper - lower) * mass, mass)
    token = b * _BLOCK + torch.searchsorted(inner, part, right=True)
    return token[:, 0], total.log()


def _below(x: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """x, but strictly below the bound even where rounding reached it."""
    return torch.minimum(x, torch.nextafter(bound, torch.zeros_like(bound)))
