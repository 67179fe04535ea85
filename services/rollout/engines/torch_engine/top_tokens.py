"""The likeliest tokens of distributions, and the similarity of their meanings.

The similarity is the semantic score F of Zhao et al. 2026 (ROSE, arXiv 2601.05053).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.rollout.engines.torch_engine.samples import LEAST, TopTokens


def top_tokens(
    raw_D_V: torch.Tensor,
    distribution_R: npt.NDArray[np.int64],
    count_R: npt.NDArray[np.int64],
    embeddings_V_H: torch.Tensor | None,
) -> TopTokens:
    """Return the likeliest tokens of each row r with count_R[r] > 0.

    raw_D_V are untempered log-probs; row r has those of distribution_R[r]. A single topk runs over
    the requested distributions.
    """
    requested_R = count_R > 0
    requested_D, source = np.unique(distribution_R[requested_R], return_inverse=True)
    rows = torch.from_numpy(requested_D).to(raw_D_V.device)
    logprobs, ids = raw_D_V[rows].topk(int(count_R.max()), -1)
    semantic = logprobs[:, :0]
    if embeddings_V_H is not None:
        semantic = semantics(logprobs.exp(), embeddings_V_H[ids])
    return TopTokens(
        ids_R_K=_spread(ids.int(), requested_R, source),
        logprobs_R_K=_spread(logprobs.clamp(min=LEAST), requested_R, source),
        semantic_R_K=_spread(semantic, requested_R, source),
    )


def semantics(p_D_K: torch.Tensor, e_D_K_H: torch.Tensor) -> torch.Tensor:
    """Return F_D_K: column k is ‖Σ p_i e_i‖² − Σ p_i² over tokens 0..k, with unit rows of e."""
    unit = torch.nn.functional.normalize(e_D_K_H.float(), dim=-1)
    sums = (p_D_K[:, :, None] * unit).cumsum(1)
    return sums.square().sum(-1) - p_D_K.square().cumsum(1)


def _spread(
    values: torch.Tensor, requested_R: npt.NDArray[np.bool_], source: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    array = values.cpu().numpy()
    spread = np.zeros((len(requested_R), array.shape[1]), array.dtype)
    spread[requested_R] = array[source]
    return spread
