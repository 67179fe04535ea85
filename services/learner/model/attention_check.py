"""Compares the learner's computation with transformers' eager attention, when a model is loaded.

Two trees of a few tokens share a prompt, one of them forked: each of their paths is also a plain
eager pass. A packed sequence attends by its cheapest method, and then node by node or block by
block, as longer ones do. A model that is trained flat has a sequence for each path; one of them is
compared (ADR 044).
"""

from collections.abc import Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from banyan.segment import Floats
from services.chassis.model_checks import eager_pass
from services.learner.attention.cost_model import AttentionMethod
from services.learner.model import load as models
from services.learner.packing import packing
from services.learner.packing.packing import PackedSequence
from services.learner.packing.unroll import Ints, Path, TreePart

READER = "the learner"
_NODE = 2  # tokens of a node behind the prompt


@torch.no_grad()
def check(model: PreTrainedModel) -> None:
    """Raise NotReady if the learner computes another model. The model is left as it was."""
    with eager_pass.named(model, READER), eager_pass.short_windows(model):
        parts = trees(eager_pass.prompt(model, eager_pass.PROMPT + 4 * _NODE).astype(np.int64))
        parts = parts if models.is_packed(model) else parts[1:]
        sequence = packing.pack(parts, sum(map(len, parts)))[0]
        paths = [
            np.append(part.token_U[0], path.token_T).astype(np.int32)
            for part in parts
            for path in part.paths
        ]
        expected = eager_pass.logprobs(model, paths)
        by_method = _logprobs_by_method(model, sequence)
    pairs = {
        name: list(zip(computed, expected, strict=True)) for name, computed in by_method.items()
    }
    eager_pass.compare(model, READER, pairs)


def _logprobs_by_method(
    model: PreTrainedModel, sequence: PackedSequence
) -> Mapping[str, list[Floats]]:
    """Return the log-probs of all paths by each method."""
    if not models.is_packed(model):
        return {"a path": _logprobs(model, sequence, models.states(model, sequence))}
    by_method = {"a packed row": _logprobs(model, sequence, models.states(model, sequence))}
    if model.device.type == "cpu":  # elsewhere there is only one method
        mask = models.mask_of(model, sequence)
        mask.force(unmasked=AttentionMethod.NODES, masked=AttentionMethod.BLOCKS)
        state_U_D = models.states(model, sequence, mask)
        by_method["a packed row, node by node"] = _logprobs(model, sequence, state_U_D)
    return by_method


def _logprobs(
    model: PreTrainedModel, sequence: PackedSequence, state_U_D: torch.Tensor
) -> list[Floats]:
    logp_E = models.predictions(model, state_U_D, sequence).logp_E.float().cpu().numpy()
    return [
        logp_E[index_T[mask_T]]
        for index_T, mask_T in zip(sequence.index_P_T, sequence.mask_P_T, strict=True)
    ]


def trees(token_U: Ints) -> list[TreePart]:
    """Return a prompt with a node that forks into two, and the same prompt with another node.

    All tokens but the first are predicted.
    """
    prompt, rest = token_U[: -4 * _NODE], token_U[-4 * _NODE :].reshape(4, _NODE)
    start, node = len(prompt), np.arange(_NODE)
    top = np.arange(start + _NODE)
    below = [np.concatenate((top, start + child * _NODE + node)) for child in (1, 2)]
    forked = np.concatenate((prompt, *rest[:3]))
    enter_U = np.repeat(np.arange(3), (start + _NODE, _NODE, _NODE))
    plain = np.concatenate((prompt, rest[3]))
    return [
        TreePart(
            token_U=forked,
            position_U=np.concatenate((top, start + _NODE + node, start + _NODE + node)),
            enter_U=enter_U,
            leave_U=np.where(enter_U == 0, 2, enter_U),
            paths=tuple(_path(forked, places) for places in below),
        ),
        TreePart(
            token_U=plain,
            position_U=top,
            enter_U=np.zeros_like(top),
            leave_U=np.zeros_like(top),
            paths=(_path(plain, top),),
        ),
    ]


def _path(token_U: Ints, places_T: Ints) -> Path:
    """Return the path through these places."""
    zero_T = np.zeros(len(places_T) - 1)
    false_T = zero_T.astype(np.bool_)
    return Path(
        predictor_T=places_T[:-1],
        token_T=token_U[places_T[1:]],
        temperature_T=zero_T + 1.0,
        behaviour_T=zero_T,
        drawn_T=zero_T,
        foreign_T=false_T,
        advantage_T=zero_T,
        share_T=zero_T + 1.0,
        origin_T=false_T.astype(np.int64),
    )
