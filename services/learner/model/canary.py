"""The canary that goes out with weights: a few fixed tokens and the log-probs that these weights give them.

An engine that took the weights says the same of them (DESIGN 7). The tokens are drawn once from the vocabulary, so that
what an engine says of two versions can be compared. One forward pass; its cost is in docs/benchmarks/vllm.md.
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
TOLERANCES = {
    "float32": 0.01,
    "bfloat16": 0.2,
}  # nats, mean; three times what two implementations differ by in bfloat16


def tokens(vocabulary: int, count: int = TOKENS) -> Ints:
    """The tokens: the same for all versions of a model."""
    keys = np.full(count, key(0, "canary"), np.uint64)
    return (uniforms(keys, np.arange(count, dtype=np.uint64)) * vocabulary).astype(np.int64)


@torch.no_grad()
def logprobs(model: PreTrainedModel, token_N: Ints, compute: Compute | None = None) -> list[float]:
    """Log-probs, untempered, of all tokens but the first, as the model computes. `compute`: a pass of a model in shards."""
    rows = pack([_piece(token_N)], len(token_N))
    logp_E = (compute(rows[0]) if compute else forward(model, rows[0])).logp_E
    said: list[float] = logp_E[torch.from_numpy(rows[0].index_P_T[0]).to(logp_E.device)].tolist()
    return said


def of(model: PreTrainedModel, dtype: str, compute: Compute | None = None) -> dict[str, Any]:
    """The canary as a weight manifest carries it."""
    embeddings: Any = model.get_input_embeddings()
    token_N = tokens(len(embeddings.weight))
    return {
        "tokens": token_N.tolist(),
        "logprobs": logprobs(model, token_N, compute),
        "tolerance": TOLERANCES[dtype],
    }


def _piece(token_N: Ints) -> TreePart:
    """A tree of one node whose tokens, but for the first, are predicted."""
    count = len(token_N)
    zero_T, place_N = np.zeros(count - 1), np.arange(count, dtype=np.int64)
    path = Path(
        place_N[:-1], token_N[1:], zero_T + 1.0, zero_T, zero_T, zero_T.astype(np.bool_), zero_T
    )
    return TreePart(token_N, place_N, np.zeros(count, np.int64), np.zeros(count, np.int64), (path,))
