"""Whether the learner computes what transformers' eager attention does: a few tokens, when a model is loaded.

Two trees that share a prompt, one of them forked: each of their paths is also a plain eager pass. A packed row attends in
the way that is the cheapest for it, and node by node or block by block, as longer rows do. A model that is trained flat has
a row of its own for each path, of which one is compared.
"""

from collections.abc import Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from banyan.segment import Floats
from services.chassis.model_checks import eager_pass
from services.learner.attention.cost_model import Way
from services.learner.model import load as models
from services.learner.packing import packing
from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import Ints, Path, TreePart

READER = "the learner"
_NODE = 2  # tokens of a node behind the prompt


@torch.no_grad()
def check(model: PreTrainedModel) -> None:
    """Raises NotReady where the learner computes another model. Leaves nothing behind."""
    with eager_pass.named(model, READER), eager_pass.short_windows(model):
        pieces = trees(eager_pass.prompt(model, eager_pass.PROMPT + 4 * _NODE).astype(np.int64))
        pieces = pieces if models.is_packed(model) else pieces[1:]
        row = packing.pack(pieces, sum(map(len, pieces)))[0]
        paths = [
            np.append(piece.token_N[0], path.token_T).astype(np.int32)
            for piece in pieces
            for path in piece.paths
        ]
        expected = eager_pass.logprobs(model, paths)
        said = _said(model, row)
    eager_pass.compare(
        model,
        READER,
        {kind: list(zip(found, expected, strict=True)) for kind, found in said.items()},
    )


def _said(model: PreTrainedModel, row: PackedSequence) -> Mapping[str, list[Floats]]:
    """Log-probs of all paths by each way to attend."""
    if not models.is_packed(model):
        return {"a path": _logprobs(model, row, models.states(model, row))}
    found = {"a packed row": _logprobs(model, row, models.states(model, row))}
    if model.device.type == "cpu":  # elsewhere there is one way
        mask = models.mask_of(model, row)
        mask.take(fused=Way.NODES, masked=Way.BLOCKS)
        found["a packed row, node by node"] = _logprobs(model, row, models.states(model, row, mask))
    return found


def _logprobs(model: PreTrainedModel, row: PackedSequence, state_N_H: torch.Tensor) -> list[Floats]:
    logp_E = models.predictions(model, state_N_H, row).logp_E.float().cpu().numpy()
    return [
        logp_E[index_T[mask_T]] for index_T, mask_T in zip(row.index_P_T, row.mask_P_T, strict=True)
    ]


def trees(token_N: Ints) -> list[TreePart]:
    """A prompt with a node that forks into two, and the same prompt with a node of other tokens; all tokens but the first
    are predicted."""
    prompt, rest = token_N[: -4 * _NODE], token_N[-4 * _NODE :].reshape(4, _NODE)
    start, node = len(prompt), np.arange(_NODE)
    top = np.arange(start + _NODE)
    below = [np.concatenate((top, start + child * _NODE + node)) for child in (1, 2)]
    forked = np.concatenate((prompt, *rest[:3]))
    enter_N = np.repeat(np.arange(3), (start + _NODE, _NODE, _NODE))
    leave_N = np.where(enter_N == 0, 2, enter_N)
    position_N = np.concatenate((top, start + _NODE + node, start + _NODE + node))
    plain = np.concatenate((prompt, rest[3]))
    return [
        TreePart(
            forked, position_N, enter_N, leave_N, tuple(_path(forked, places) for places in below)
        ),
        TreePart(plain, top, np.zeros_like(top), np.zeros_like(top), (_path(plain, top),)),
    ]


def _path(token_N: Ints, places_T: Ints) -> Path:
    """The path through these places."""
    zero_T = np.zeros(len(places_T) - 1)
    fresh_T = zero_T.astype(np.bool_)
    return Path(
        predictor_T=places_T[:-1],
        token_T=token_N[places_T[1:]],
        temperature_T=zero_T + 1.0,
        behaviour_T=zero_T,
        drawn_T=zero_T,
        foreign_T=fresh_T,
        advantage_T=zero_T,
        share_T=zero_T + 1.0,
        origin_T=fresh_T.astype(np.int64),
    )
