"""The likeliest tokens of distributions that the sampler has at hand, and whether they mean the same (card 30)."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.rollout.engines.torch_engine.samples import LEAST, Likeliest


def likeliest(
    raw_D_V: torch.Tensor,
    which_R: npt.NDArray[np.int64],
    most_R: npt.NDArray[np.int64],
    embeddings: torch.Tensor | None,
) -> Likeliest:
    """Of each row r that asks (most_R[r] > 0), from untempered log-probs raw_D_V[which_R[r]]. One topk, of those asked."""
    asks = most_R > 0
    of_D, back = np.unique(which_R[asks], return_inverse=True)
    logprobs, ids = raw_D_V[torch.from_numpy(of_D).to(raw_D_V.device)].topk(int(most_R.max()), -1)
    semantic = (
        semantics(logprobs.exp(), embeddings[ids]) if embeddings is not None else logprobs[:, :0]
    )
    each = [_spread(x, asks, back) for x in (ids.int(), logprobs.clamp(min=LEAST), semantic)]
    return Likeliest(each[0], each[1], each[2])


def semantics(p_D_K: torch.Tensor, e_D_K_H: torch.Tensor) -> torch.Tensor:
    """F_D_K: column k is ‖Σ p_i e_i‖² − Σ p_i² over tokens 0..k, with the rows of e brought to length 1."""
    unit = torch.nn.functional.normalize(e_D_K_H.float(), dim=-1)
    sums = (p_D_K[:, :, None] * unit).cumsum(1)
    return sums.square().sum(-1) - p_D_K.square().cumsum(1)


def _spread(
    values: torch.Tensor, asks: npt.NDArray[np.bool_], back: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    array = values.cpu().numpy()
    out = np.zeros((len(asks), array.shape[1]), array.dtype)
    out[asks] = array[back]
    return out
