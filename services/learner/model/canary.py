"""The canary that goes out with weights: a few fixed tokens with their log-probs by these weights.

An engine that loaded the weights computes the same log-probs. The tokens are drawn once from the
vocabulary, so that an engine's log-probs of two versions can be compared. It takes one forward
pass; its cost is in docs/benchmarks/vllm.md.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from banyan.draws import key, uniforms
from services.learner.model.load import Pass, forward
from services.learner.packing.packing import PackedSequence, pack
from services.learner.packing.unroll import Ints, Path, TreePart

Compute = Callable[[PackedSequence], Pass]
TOKENS = 32
TOLERANCES = {"float32": 0.01, "bfloat16": 0.2}
"""Nats, mean over the tokens; three times the difference of two implementations in bfloat16."""


def tokens(vocabulary: int, count: int = TOKENS) -> Ints:
    """Return the tokens: the same for all versions of a model."""
    keys = np.full(count, key(0, "canary"), np.uint64)
    return (uniforms(keys, np.arange(count, dtype=np.uint64)) * vocabulary).astype(np.int64)


@torch.no_grad()
def logprobs(model: PreTrainedModel, token_U: Ints, compute: Compute | None = None) -> list[float]:
    """Return the untempered log-probs of all tokens but the first, as the model computes them.

    compute: the pass of a model in shards, instead of the model's own.
    """
    (sequence,) = pack([_part(token_U)], len(token_U))
    logp_E = (compute(sequence) if compute else forward(model, sequence)).logp_E
    index_T = torch.from_numpy(sequence.index_P_T[0]).to(logp_E.device)
    logp_T: list[float] = logp_E[index_T].tolist()
    return logp_T


def of(model: PreTrainedModel, dtype: str, compute: Compute | None = None) -> dict[str, Any]:
    """Return the canary as a weight manifest carries it."""
    embeddings: Any = model.get_input_embeddings()
    token_U = tokens(len(embeddings.weight))
    return {
        "tokens": token_U.tolist(),
        "logprobs": logprobs(model, token_U, compute),
        "tolerance": TOLERANCES[dtype],
    }


def _part(token_U: Ints) -> TreePart:
    """Return a tree of one node; all of its tokens but the first are predicted."""
    count = len(token_U)
    place_U, zero_U = np.arange(count, dtype=np.int64), np.zeros(count, np.int64)
    zero_T = np.zeros(count - 1)
    path = Path(
        predictor_T=place_U[:-1],
        token_T=token_U[1:],
        temperature_T=zero_T + 1.0,
        behaviour_T=zero_T,
        drawn_T=zero_T,
        foreign_T=zero_T.astype(np.bool_),
        advantage_T=zero_T,
    )
    return TreePart(
        token_U=token_U, position_U=place_U, enter_U=zero_U, leave_U=zero_U, paths=(path,)
    )
